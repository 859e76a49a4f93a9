//! The do-nothing server: what the kernel alone costs. It answers each newline received with a
//! fixed reply and looks at nothing else (but `version` and `stats`), so no server over the same
//! backend can be cheaper. `stats` tells how many lines it has answered, to check a generator's own
//! count.
//!
//! ```text
//! floor [epoll|uring|auto] [port] [end|value BYTES]
//! ```
//! `end` answers `END`, as a miss; `value 32` answers a hit with a value of 32 bytes. The port, 0
//! by default, is printed once the server listens. It runs until it is killed.

use std::io::{self, Write};

use kachel_io::{AnyIo, Choice, Event, Io, Limits, SendBlock, SocketId, Wait, listener, open};

const VERSION: &[u8] = b"VERSION 1.6.45 do-nothing\r\n";

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let choice = match arguments.first().map_or("auto", String::as_str) {
        "epoll" => Choice::Epoll,
        "uring" => Choice::Uring,
        _ => Choice::Auto,
    };
    let port: u16 = arguments.get(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let reply = match arguments.get(2).map(String::as_str) {
        Some("value") => {
            let count = arguments.get(3).and_then(|count| count.parse().ok()).unwrap_or(32);
            let value = "v".repeat(count);
            format!("VALUE key_of_30_bytes_000000000000000 0 {count}\r\n{value}\r\nEND\r\n")
        }
        _ => "END\r\n".to_owned(),
    };
    let socket = listener::tcp(([127, 0, 0, 1], port).into(), 1024, false)?;
    let address = listener::local_addr(&socket)?;
    match open(choice, Limits::default())? {
        AnyIo::Uring(io) => announce_and_serve(*io, socket, address, reply.as_bytes()),
        AnyIo::Epoll(io) => announce_and_serve(*io, socket, address, reply.as_bytes()),
    }
}

fn announce_and_serve(
    mut io: impl Io,
    socket: std::os::fd::OwnedFd,
    address: std::net::SocketAddr,
    reply: &[u8],
) -> io::Result<()> {
    io.listen(socket);
    println!("{} {}", address.port(), io.kind());
    io::stdout().flush()?;
    serve(io, reply)
}

/// One tick after the other, for ever.
fn serve(mut io: impl Io, reply: &[u8]) -> io::Result<()> {
    let mut events = Vec::with_capacity(1024);
    let mut spare: Vec<SendBlock> = Vec::new();
    let mut ended = Vec::new();
    let mut answered = 0;
    loop {
        io.poll(Wait::Forever, &mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Received { socket, bytes } => {
                    let received = io.lent(bytes);
                    let count = received.iter().filter(|byte| **byte == b'\n').count();
                    // Load generators want to know whom they talk to.
                    if received.starts_with(b"version") {
                        answer(&mut io, socket, VERSION, count, &mut spare);
                    } else if received.starts_with(b"stats") {
                        let pid = std::process::id();
                        let counts =
                            format!("STAT pid {pid}\r\nSTAT cmd_get {answered}\r\nEND\r\n");
                        answer(&mut io, socket, counts.as_bytes(), 1, &mut spare);
                    } else {
                        answered += count;
                        answer(&mut io, socket, reply, count, &mut spare);
                    }
                }
                Event::Sent { mut block, .. } => {
                    block.clear();
                    spare.push(block);
                }
                Event::Finished { socket } | Event::Failed { socket } => ended.push(socket),
                Event::Accepted { .. }
                | Event::Gone
                | Event::Landed { .. }
                | Event::Taken { .. }
                | Event::Datagram { .. }
                | Event::DatagramsLost { .. }
                | Event::FileDone { .. }
                | Event::DirectIoRefused { .. }
                | Event::Woken => {}
            }
        }
        // Not before the batch is through: one socket may finish and fail in the same one.
        ended.sort_unstable();
        ended.dedup();
        ended.drain(..).for_each(|socket| io.close(socket));
    }
}

fn answer(
    io: &mut impl Io,
    socket: SocketId,
    reply: &[u8],
    count: usize,
    spare: &mut Vec<SendBlock>,
) {
    if count == 0 {
        return;
    }
    let mut block = spare.pop().unwrap_or_default();
    for _ in 0..count {
        let mut rest = reply;
        while !rest.is_empty() {
            let taken = block.put(rest);
            rest = &rest[taken..];
            if block.room() == 0 {
                io.send(socket, std::mem::replace(&mut block, spare.pop().unwrap_or_default()));
            }
        }
    }
    io.send(socket, block);
}
