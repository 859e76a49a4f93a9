//! The two rings shared with the kernel, and every op that we submit.
//!
//! Upstream:   the operations (`accept`, `receive`, `send`, `close`, `datagrams`, `files`) ask for
//!             ops.
//! Downstream: the kernel; its completions come back as [`Completion`]s with the op's [`Token`].
//!
//! ```text
//! user data:  index:32 | zero:24 | operation:8 (high byte)
//! ```
//!
//! The index is that of a slot, a listener, a datagram socket or an operation on a file.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Memory named by a submitted op stays where it is until the op's last completion. [`end`]
//!   cancels every op and waits for its last completion, so that the memory may be freed
//!   afterwards. If the kernel keeps an op, its memory is never freed.
//! - I2  Only the thread that made the ring submits to it (`SINGLE_ISSUER`); it is not `Send`.
//! - I3  `ops` counts the ops whose last completion was not taken. Each op has exactly one.
//! - I4  A descriptor that a completion brings has an owner: the code that handles the completion,
//!   or [`end`], which closes those of the completions that nobody handles any more.
//! - I5  A descriptor that an op closes belongs to the ring until the kernel has closed it. The
//!   kernel closes it in any case, unless the op was cancelled or never submitted.
//!
//! [`end`]: Ring::end

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::buffers::{Buffers, Group};
use super::gather::Gather;
use crate::event::Wait;
use crate::limits::{RECEIVE_BUFFER_BYTES, SLACK_EVENTS};
use crate::slack::Slack;

/// Bytes after which a multishot receive ends. So one poll returns at most this number of bytes for
/// one socket. Otherwise the kernel would fill up to 32 buffers before the socket could be paused.
const RECEIVE_BYTES_MAX: u32 = RECEIVE_BUFFER_BYTES as u32;
/// The word of an op that holds this limit: `optlen` in `struct io_uring_sqe`, of Linux 6.17.
const OPTLEN_WORD: usize = 11;
const _: () = assert!(size_of::<squeue::Entry>() == 64 && align_of::<squeue::Entry>() >= 4);

const SUBMISSIONS_MAX: u32 = 512;
const COMPLETIONS_MAX: u32 = 4096;

/// How often the ring is asked to cancel its ops while none of them ends, and the time between two
/// attempts. Together a second: an op that the kernel works on ends in microseconds.
const END_ATTEMPTS_MAX: u32 = 100;
const END_RETRY: Duration = Duration::from_millis(10);

/// The purpose of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    Doorbell = 1,
    Accept,
    CancelAccept,
    Receive,
    Send,
    Cancel,
    Datagrams,
    CancelDatagrams,
    File,
    /// An operation on a file whose result is a new descriptor.
    OpenFile,
    /// An operation on a file that closes its descriptor (I5).
    CloseFile,
    /// The bell of the threads that do the work that waits.
    Calls,
}

impl Operation {
    /// Whether the result of a completion is a new descriptor, if it is no error.
    const fn brings_descriptor(self) -> bool {
        matches!(self, Self::Accept | Self::OpenFile)
    }
}

/// Which op a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) operation: Operation,
    pub(super) index: u32,
}

impl Token {
    pub(super) fn new(operation: Operation, index: usize) -> Self {
        Self { operation, index: index as u32 }
    }

    fn to_user_data(self) -> u64 {
        (self.operation as u64) << 56 | u64::from(self.index)
    }

    fn from_user_data(user_data: u64) -> Self {
        let operation = match user_data >> 56 {
            1 => Operation::Doorbell,
            2 => Operation::Accept,
            3 => Operation::CancelAccept,
            4 => Operation::Receive,
            5 => Operation::Send,
            6 => Operation::Cancel,
            7 => Operation::Datagrams,
            8 => Operation::CancelDatagrams,
            9 => Operation::File,
            10 => Operation::OpenFile,
            11 => Operation::CloseFile,
            12 => Operation::Calls,
            other => unreachable!("no op of ours has the operation {other}"),
        };
        Self { operation, index: user_data as u32 }
    }
}

/// The completion of an op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) token: Token,
    /// The result of the system call; an error is a negative number.
    pub(super) result: i32,
    /// Whether more completions of this op will come.
    pub(super) more: bool,
    /// The receive buffer that the kernel took.
    pub(super) buffer: Option<u16>,
}

/// The rings, and the receive buffers that the kernel fills.
pub(super) struct Ring {
    ring: IoUring,
    pub(super) buffers: Buffers,
    /// Completions taken out early, to make room.
    backlog: VecDeque<Completion>,
    /// Ops in progress, those that are not submitted yet included (I3).
    ops: usize,
    /// The descriptors that ops in progress close, with the indices of their tokens (I5).
    closing: Vec<(u32, OwnedFd)>,
    /// Whether the kernel has kept ops after the end.
    is_stuck: bool,
    /// Whether the kernel supports a byte limit for a multishot receive.
    ends_receives: bool,
    /// How long a long wait may go on for more than one completion, in microseconds.
    slack: Slack,
}

impl Ring {
    /// Sets up the rings and the buffers.
    ///
    /// Errors: the kernel is too old (before 6.1) or forbids it.
    pub(super) fn new(slack_us: u32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS_MAX)
            .build(SUBMISSIONS_MAX)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffers = Buffers::new(&ring.submitter())?;
        let backlog = VecDeque::with_capacity(COMPLETIONS_MAX as usize);
        let mut ring = Self {
            ring,
            buffers,
            backlog,
            ops: 0,
            closing: Vec::new(),
            is_stuck: false,
            ends_receives: true,
            slack: Slack::new(slack_us),
        };
        ring.ends_receives = ring.can_end_receives()?;
        Ok(ring)
    }

    /// Whether the kernel knows `OPTLEN_WORD`. Submits an op with a wrong descriptor: the kernel
    /// checks the form of an op before its descriptor.
    fn can_end_receives(&mut self) -> io::Result<bool> {
        let none = Fd(-1);
        self.push_without_memory(receive_to_the_limit(none), Token::new(Operation::Receive, 0));
        self.ring.submit_and_wait(1)?;
        self.reap();
        let answer = self.next_completion().map(|completion| completion.result);
        Ok(answer == Some(-libc::EBADF))
    }

    /// Watches the eventfd with a multishot op.
    pub(super) fn watch_doorbell(&mut self, doorbell: BorrowedFd<'_>, token: Token) {
        let op = opcode::PollAdd::new(Fd(doorbell.as_raw_fd()), libc::POLLIN as u32).multi(true);
        self.push_without_memory(op.build(), token);
    }

    /// Accepts with a multishot op.
    pub(super) fn accept(&mut self, listener: BorrowedFd<'_>, token: Token) {
        let op = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).flags(libc::SOCK_CLOEXEC);
        self.push_without_memory(op.build(), token);
    }

    /// Receives into provided buffers: until `RECEIVE_BYTES_MAX` have come, or once.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, token: Token) {
        // The buffers are memory, but `self` owns them and outlives every op (I1).
        let fd = Fd(socket.as_raw_fd());
        let op = if self.ends_receives {
            receive_to_the_limit(fd)
        } else {
            opcode::Recv::new(fd, std::ptr::null_mut(), RECEIVE_BYTES_MAX)
                .buf_group(Group::Connections as u16)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        self.push_without_memory(op, token);
    }

    /// Receives once into the memory that `scatter` points to, as many bytes as have arrived.
    ///
    /// # Safety
    /// `scatter` and the memory that it points to stay in place until the op's completion, and
    /// no other code touches them.
    pub(super) unsafe fn receive_scattered(
        &mut self,
        socket: BorrowedFd<'_>,
        scatter: &mut Gather,
        token: Token,
    ) {
        let op = opcode::RecvMsg::new(Fd(socket.as_raw_fd()), scatter.header_mut());
        // SAFETY:
        // - the memory outlives the op: discharged by the caller.
        unsafe { self.push(op.build(), token) };
    }

    /// Has the kernel know the buffers of datagrams. Does nothing the second time.
    pub(super) fn begin_datagrams(&mut self) -> io::Result<()> {
        self.buffers.begin_datagrams(&self.ring.submitter())
    }

    /// Receives datagrams into provided buffers, again and again. Each buffer has an address of up
    /// to `header.msg_namelen` bytes, and the datagram.
    ///
    /// # Safety
    /// `header` stays in place and unchanged until the op's last completion.
    pub(super) unsafe fn receive_datagrams(
        &mut self,
        socket: BorrowedFd<'_>,
        header: &libc::msghdr,
        token: Token,
    ) {
        let fd = Fd(socket.as_raw_fd());
        let op = opcode::RecvMsgMulti::new(fd, &raw const *header, Group::Datagrams as u16);
        // SAFETY:
        // - the header outlives the op: discharged by the caller.
        // - the buffers are memory, but `self` owns them and outlives every op (I1).
        unsafe { self.push(op.build(), token) };
    }

    /// Closes a file. No other op in progress has the index of `token`.
    pub(super) fn close_file(&mut self, file: OwnedFd, token: Token) {
        debug_assert!(token.operation == Operation::CloseFile, "I5: it is found by its token");
        let op = opcode::Close::new(Fd(file.as_raw_fd()));
        self.closing.push((token.index, file));
        self.push_without_memory(op.build(), token);
    }

    /// Cancels one op.
    pub(super) fn cancel(&mut self, target: Token, token: Token) {
        self.push_without_memory(opcode::AsyncCancel::new(target.to_user_data()).build(), token);
    }

    /// Cancels every op of a socket.
    pub(super) fn cancel_all(&mut self, socket: BorrowedFd<'_>, token: Token) {
        let which = CancelBuilder::fd(Fd(socket.as_raw_fd())).all();
        self.push_without_memory(opcode::AsyncCancel2::new(which).build(), token);
    }

    /// Sends all of `bytes`, or the bytes before an error.
    ///
    /// # Safety
    /// `bytes` stays in place and unchanged until the op's completion.
    pub(super) unsafe fn send(&mut self, socket: BorrowedFd<'_>, bytes: &[u8], token: Token) {
        let fd = Fd(socket.as_raw_fd());
        let op = opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL);
        // SAFETY:
        // - the memory outlives the op: discharged by the caller.
        unsafe { self.push(op.build(), token) };
    }

    /// Sends the bytes of `gather`. If `whole`, it completes when all bytes are sent, or at an
    /// error; otherwise, as soon as some bytes are sent.
    ///
    /// # Safety
    /// `gather` and the memory that it points to stay in place and unchanged until the op's
    /// completion.
    pub(super) unsafe fn send_gathered(
        &mut self,
        socket: BorrowedFd<'_>,
        gather: &Gather,
        whole: bool,
        token: Token,
    ) {
        let wait = if whole { libc::MSG_WAITALL } else { 0 };
        let op = opcode::SendMsg::new(Fd(socket.as_raw_fd()), gather.header())
            .flags((libc::MSG_NOSIGNAL | wait) as u32);
        // SAFETY:
        // - the memory outlives the op: discharged by the caller.
        unsafe { self.push(op.build(), token) };
    }

    fn push_without_memory(&mut self, op: squeue::Entry, token: Token) {
        // SAFETY:
        // - no memory is named that could end before the op: the callers, all above, name
        //   descriptors, tokens and the buffer group only.
        unsafe { self.push(op, token) };
    }

    /// Queues an op for the next [`Self::enter`].
    ///
    /// # Safety
    /// Memory that the op names stays where it is until its last completion (I1).
    pub(super) unsafe fn push(&mut self, op: squeue::Entry, token: Token) {
        let op = op.user_data(token.to_user_data());
        loop {
            // SAFETY:
            // - the op's memory outlives it: discharged by the caller.
            if unsafe { self.ring.submission().push(&op) }.is_ok() {
                self.ops += 1; // I3
                return;
            }
            self.make_room();
        }
    }

    /// Submits the queued ops early, because the ring is full.
    fn make_room(&mut self) {
        match self.ring.submit() {
            Ok(_) => {}
            Err(error) if is_passing(&error) => self.reap(),
            Err(error) => panic!("io_uring takes no ops any more: {error}"),
        }
    }

    /// Submits the queued ops and waits for the first completion, by one system call. There is no
    /// system call if there is nothing to submit, to wait for or to run.
    pub(super) fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let wait = if self.backlog.is_empty() { wait } else { Wait::Now };
        let entered = match wait {
            _ if wait.has_slack()
                && self.may_wait_for_several()
                && let Some(slack_us) = self.slack.next_us() =>
            {
                let entered = self.wait_for_several(wait, slack_us);
                self.slack.note(self.ring.completion().len());
                entered
            }
            Wait::Now => {
                let queue = self.ring.submission();
                if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                    return Ok(());
                }
                drop(queue);
                self.ring.submit()
            }
            Wait::Forever => self.ring.submit_and_wait(1),
            Wait::AtMostNs(ns) => {
                let limit =
                    Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether nothing is there to report or to do, so that a wait may go on for several
    /// completions.
    fn may_wait_for_several(&mut self) -> bool {
        if !self.ring.completion().is_empty() {
            return false;
        }
        debug_assert!(self.backlog.is_empty(), "what was taken is reported first");
        let queue = self.ring.submission();
        queue.is_empty() && !queue.taskrun() && !queue.cq_overflow()
    }

    /// Waits for `SLACK_EVENTS` completions, or for one once `slack_us` have passed since now. The
    /// kernel counts the time from the beginning of the wait (Linux 6.12), so an idle server is
    /// woken no more often.
    fn wait_for_several(&self, wait: Wait, slack_us: u32) -> io::Result<usize> {
        debug_assert!(wait.has_slack() && slack_us > 0, "a short wait has a cause");
        let limit_ns = match wait {
            Wait::AtMostNs(ns) => ns,
            // Without a limit, the kernel ignores the shorter time.
            Wait::Now | Wait::Forever => 3_600_000_000_000,
        };
        let limit =
            Timespec::new().sec(limit_ns / 1_000_000_000).nsec((limit_ns % 1_000_000_000) as u32);
        let submitter = self.ring.submitter();
        if self.ring.params().is_feature_min_timeout() {
            let args = SubmitArgs::new().min_wait_usec(slack_us).timespec(&limit);
            return submitter.submit_with_args(SLACK_EVENTS, &args);
        }
        std::thread::sleep(Duration::from_micros(slack_us.into()));
        submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit))
    }

    /// Takes the completions that are there.
    pub(super) fn reap(&mut self) {
        let Self { ring, backlog, ops, closing, .. } = self;
        backlog.extend(ring.completion().map(|each| {
            let more = cqueue::more(each.flags());
            debug_assert!(*ops > 0, "I3");
            *ops -= usize::from(!more);
            let token = Token::from_user_data(each.user_data());
            if token.operation == Operation::CloseFile {
                end_close(closing, token.index, each.result());
            }
            Completion {
                token,
                result: each.result(),
                more,
                buffer: cqueue::buffer_select(each.flags()),
            }
        }));
    }

    /// The oldest completion taken.
    pub(super) fn next_completion(&mut self) -> Option<Completion> {
        let oldest = self.backlog.pop_front();
        if self.backlog.is_empty() {
            // The next completion is put at the beginning again. Otherwise the queue would go
            // through all of its memory, however few completions it has at a time.
            self.backlog.clear();
        }
        oldest
    }
}

/// A multishot receive that ends after `RECEIVE_BYTES_MAX`.
fn receive_to_the_limit(socket: Fd) -> squeue::Entry {
    let mut op = opcode::RecvMulti::new(socket, Group::Connections as u16).build();
    // SAFETY:
    // - an entry is the kernel's `struct io_uring_sqe`, as `repr(C)` says: 16 words, aligned for
    //   them (asserted above), of which any value is valid.
    // - no other reference to `op` exists.
    let words = unsafe { &mut *(&raw mut op).cast::<[u32; 16]>() };
    words[OPTLEN_WORD] = RECEIVE_BYTES_MAX;
    op
}

/// Ends the ownership of a descriptor whose op has completed (I5).
fn end_close(closing: &mut Vec<(u32, OwnedFd)>, index: u32, result: i32) {
    let place = closing.iter().position(|(of, _)| *of == index);
    let (_, file) = closing.swap_remove(place.expect("I5: an op that closes has a descriptor"));
    if result != -libc::ECANCELED {
        let _closed_by_the_kernel = file.into_raw_fd();
    }
}

/// Whether an error is no failure: the time is up, a signal came, or the caller must take
/// completions first.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

impl Ring {
    /// Cancels every op, and waits until the kernel uses no memory of any. Closes the descriptors
    /// that come meanwhile, or came and were not reported (I4). Returns `false` if the kernel keeps
    /// an op: then the caller must never free the memory of its ops (I1).
    pub(super) fn end(&mut self) -> bool {
        let mut attempts = 0;
        loop {
            // Ops that were not submitted are unknown to the kernel, and stay so.
            let unsubmitted = self.ring.submission().len();
            self.reap();
            self.discard();
            let left = self.ops - unsubmitted;
            if left == 0 {
                return true;
            }
            if self.is_stuck || attempts == END_ATTEMPTS_MAX {
                self.is_stuck = true;
                return false;
            }
            // It fails when there is nothing to cancel, when a signal comes, or when it is
            // forbidden. It does not wait for ops that it found in progress, so only the count of
            // completions says when they have ended.
            let cancelled = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
            let collected = self.collect();
            self.reap();
            self.discard();
            if self.ops - unsubmitted < left {
                attempts = 0;
                continue;
            }
            attempts += 1;
            if attempts > 1 || cancelled.is_err() || collected.is_err() {
                std::thread::sleep(END_RETRY);
            }
        }
    }

    /// Drops the completions that were taken, and closes the descriptors that they bring (I4).
    fn discard(&mut self) {
        for completion in self.backlog.drain(..) {
            if completion.token.operation.brings_descriptor() && completion.result >= 0 {
                // SAFETY:
                // - the kernel has made this descriptor for us, and nobody else knows it: the
                //   completion is dropped here.
                drop(unsafe { OwnedFd::from_raw_fd(completion.result) });
            }
        }
    }

    /// Has the kernel report the ops that have ended. Submits nothing, and does not wait.
    fn collect(&self) -> io::Result<usize> {
        const GET_EVENTS: u32 = 1; // IORING_ENTER_GETEVENTS (linux/io_uring.h)
        // SAFETY:
        // - nothing is submitted, so no op's memory is concerned.
        // - without an argument the kernel reads no memory of ours.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, GET_EVENTS, None) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.end() {
            self.buffers.leak(); // I1
            std::mem::forget(std::mem::take(&mut self.closing)); // I5: the kernel may close them.
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn no_op_is_in_progress_after_the_end() {
        let Ok(mut ring) = Ring::new(0) else {
            return println!("skip io_uring the kernel forbids it");
        };
        assert_eq!(ring.ops, 0, "I3: that of the question has ended");
        let (near, _far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty());
        let doorbell = doorbell.expect("an eventfd");
        ring.watch_doorbell(doorbell.as_fd(), Token::new(Operation::Doorbell, 0));
        ring.receive(near.as_fd(), Token::new(Operation::Receive, 0));
        ring.enter(Wait::Now).expect("submitted");
        // One that the kernel does not know.
        ring.receive(near.as_fd(), Token::new(Operation::Receive, 1));
        assert_eq!(ring.ops, 3);
        assert!(ring.end());
        assert_eq!(ring.ops, 1, "I3: the one that was never submitted");
        assert!(ring.end(), "the second time there is nothing to do");
    }

    /// Has the kernel carry out the queued ops, and waits until `count` completions are there,
    /// which nobody takes.
    fn await_completions(ring: &mut Ring, count: usize) {
        ring.ring.submit().expect("submitted");
        for _ in 0..10_000 {
            ring.collect().expect("the kernel reports");
            if ring.ring.completion().len() == count {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the kernel has not completed {count} ops");
    }

    /// The number of descriptors that this process has of a file.
    fn descriptors_of(file: &std::path::Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
        all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|path| path == file)).count()
    }

    /// The fault: a file stayed open if the op that closes it was cancelled, or never submitted.
    #[test]
    fn a_file_whose_close_is_not_carried_out_is_closed_at_the_end() {
        let Ok(mut ring) = Ring::new(0) else {
            return println!("skip io_uring the kernel forbids it");
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        let another = || file.reopen().expect("it is there").into();
        let close = |index| Token::new(Operation::CloseFile, index);
        // The kernel closes the first one.
        ring.close_file(another(), close(0));
        await_completions(&mut ring, 1);
        // The second one waits behind an op that only the end cancels.
        let quiet = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty());
        let quiet = quiet.expect("an eventfd");
        let poll = opcode::PollAdd::new(Fd(quiet.as_raw_fd()), libc::POLLIN as u32).build();
        let poll = poll.flags(squeue::Flags::IO_LINK);
        ring.push_without_memory(poll, Token::new(Operation::Doorbell, 0));
        ring.close_file(another(), close(1));
        ring.ring.submit().expect("submitted");
        // The third one does not reach the kernel.
        ring.close_file(another(), close(2));
        assert_eq!(descriptors_of(file.path()), 3, "ours, and two that are not closed yet");
        assert!(ring.end());
        assert_eq!(descriptors_of(file.path()), 2, "I5: the kernel knows nothing of the third");
        drop(ring);
        assert_eq!(descriptors_of(file.path()), 1, "I5");
    }

    /// The fault: the descriptors of files and clients that came while the ring ended stayed open.
    #[test]
    fn descriptors_that_nobody_takes_are_closed_at_the_end() {
        let Ok(mut ring) = Ring::new(0) else {
            return println!("skip io_uring the kernel forbids it");
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = std::ffi::CString::new(file.path().as_os_str().as_bytes()).expect("no zero");
        let descriptors = || descriptors_of(file.path());
        let at = opcode::OpenAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).flags(libc::O_CLOEXEC);
        // SAFETY:
        // - the path lives until the op has completed, below.
        unsafe { ring.push(at.build(), Token::new(Operation::OpenFile, 0)) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        ring.accept(listener.as_fd(), Token::new(Operation::Accept, 0));
        let address = listener.local_addr().expect("an address");
        let mut client = std::net::TcpStream::connect(address).expect("it listens");
        await_completions(&mut ring, 2);
        assert_eq!(descriptors(), 2, "ours, and the one that the ring has opened");
        assert!(ring.end());
        assert_eq!(descriptors(), 1, "I4");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        assert_eq!(client.read(&mut [0; 9]).expect("the end"), 0, "I4: the client is let go");
    }

    /// The fault: each completion was put behind the one before, through all memory of the backlog.
    /// So an idle core that was woken once a second grew by 20 bytes a second, up to 80 KiB.
    #[test]
    fn completions_one_at_a_time_use_the_same_memory() {
        let Ok(mut ring) = Ring::new(0) else {
            return println!("skip io_uring the kernel forbids it");
        };
        let mut take_one = || {
            ring.push_without_memory(opcode::Nop::new().build(), Token::new(Operation::File, 0));
            await_completions(&mut ring, 1);
            ring.reap();
            let place = ring.backlog.front().map(std::ptr::from_ref);
            assert!(ring.next_completion().is_some() && ring.next_completion().is_none());
            place
        };
        let first = take_one();
        for _ in 0..3 {
            assert_eq!(take_one(), first);
        }
    }

    #[test]
    fn tokens_survive_the_kernel() {
        use Operation::{Accept, Cancel, CancelAccept, Doorbell, Receive, Send};
        use Operation::{Calls, CancelDatagrams, CloseFile, Datagrams, File, OpenFile};
        let connections = [Doorbell, Accept, CancelAccept, Receive, Send, Cancel];
        let others = [Datagrams, CancelDatagrams, File, OpenFile, CloseFile, Calls];
        for operation in connections.into_iter().chain(others) {
            let token = Token::new(operation, u32::MAX as usize);
            assert_eq!(Token::from_user_data(token.to_user_data()), token);
        }
    }
}
