//! Rights that the kernel does not let the server give up.

use kachel_testkit::{Ended, Launch, Server, skip};
use rustix::io::Errno;
use rustix::process::Gid;
use rustix::thread::set_thread_groups;

use crate::kernel::{Refusal, refusing};
use crate::{noop, program};

/// Starts a server of root that is in these groups, on a kernel that refuses `setgroups`.
fn start_in_groups(groups: &[Gid]) -> Result<Server, Ended> {
    let refusal = Refusal { call: libc::SYS_setgroups, argument: None, error: Errno::PERM };
    std::thread::scope(|scope| {
        // The groups are those of the thread, and of what it starts.
        let thread = scope.spawn(|| {
            set_thread_groups(groups).expect("root may choose its groups");
            refusing(&[refusal], || Launch::memcached(program(), &["-t", "1"]).try_start())
        });
        thread.join().expect("a start")
    })
}

/// `-u` promises the rights of that user, and no others.
#[test]
fn a_group_that_cannot_be_given_up_ends_the_start() {
    if !rustix::process::geteuid().is_root() {
        return skip("identity.root", "only root can change to another user");
    }
    let other = start_in_groups(&[Gid::ROOT, Gid::from_raw(5)]);
    let said = other.expect_err("it would keep the rights of another group").said;
    assert!(said.contains("the rights of group 5 cannot be given up"), "{said}");
    // Where there is no group to give up, the refusal does no harm.
    for groups in [&[][..], &[Gid::ROOT]] {
        assert_eq!(noop(&start_in_groups(groups).expect("it starts")), "MN\r\n");
    }
}
