//! The user of the process, the change to a user with fewer rights, and the rights to load programs
//! into the kernel.
//!
//! Upstream:   `kachel`, for `-u` and `--pipe`, before there is a second thread.
//! Downstream: the user database, `setgroups`, `setgid`, `setuid`, `capset`.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities,
};

/// A user of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The number of the user's first group.
    pub gid: u32,
}

/// Bytes for one line of the user database; a longer one is an error.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Whether the real or the effective user of the process is root.
pub fn is_root() -> bool {
    rustix::process::getuid().is_root() || rustix::process::geteuid().is_root()
}

/// Looks up the user `name`. Returns `None` if there is no such user.
///
/// Errors: the user database cannot be read.
pub fn find_user(name: &str) -> io::Result<Option<User>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut line = vec![0 as libc::c_char; LINE_BYTES_MAX];
    let mut found: *mut libc::passwd = ptr::null_mut();
    // SAFETY:
    // - `name` is a string that ends in zero: `CString`.
    // - `entry` and `found` are places for one value each, and `line` has the length
    //   that the call is given: above.
    // - all four outlive the call, and nothing else points to them.
    let failed = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            line.as_mut_ptr(),
            line.len(),
            &raw mut found,
        )
    };
    if found.is_null() {
        return match failed {
            0 | libc::ENOENT | libc::ESRCH => Ok(None),
            error => Err(io::Error::from_raw_os_error(error)),
        };
    }
    // SAFETY: the call found the user, so it filled `entry`: getpwnam_r(3).
    let entry = unsafe { entry.assume_init() };
    Ok(Some(User { uid: entry.pw_uid, gid: entry.pw_gid }))
}

/// Makes the process run as `user` from now on, in all threads, with only the user's first group.
///
/// Errors: the process has no permission, or keeps a group of the user that it was. Some rights may
/// be gone already, so the caller must end the process.
pub fn become_user(user: User) -> io::Result<()> {
    // SAFETY: no groups are read through the null pointer, since their number is 0.
    if let Err(error) = checked(unsafe { libc::setgroups(0, ptr::null()) }) {
        check_groups(user, &error)?;
    }
    // SAFETY: takes a number and touches no memory of ours.
    checked(unsafe { libc::setgid(user.gid) })?;
    // SAFETY: as above.
    checked(unsafe { libc::setuid(user.uid) })?;
    assert!(user.uid == 0 || !is_root(), "the kernel has set all three users");
    Ok(())
}

/// Whether `user` may do without `setgroups`, which was `refused`. In a user namespace it may be
/// forbidden for good. That does no harm if the process is in no group but the user's own.
///
/// Errors: it is in another one, and would keep its rights.
fn check_groups(user: User, refused: &io::Error) -> io::Result<()> {
    let groups = rustix::process::getgroups()?;
    match groups.iter().map(|group| group.as_raw()).find(|group| *group != user.gid) {
        None if refused.raw_os_error() == Some(libc::EPERM) => Ok(()),
        None => Err(io::Error::new(refused.kind(), refused.to_string())),
        Some(group) => Err(io::Error::new(
            refused.kind(),
            format!("the rights of group {group} cannot be given up: {refused}"),
        )),
    }
}

/// The rights to load a program into the kernel and to attach it to an interface. `SYS_ADMIN`
/// includes the others.
const LOADING: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_ADMIN);

/// Gives up the rights to load programs into the kernel and to attach them to interfaces. The other
/// rights stay. The caller must be the only thread, because each thread has rights of its own.
///
/// Errors: the kernel refuses.
pub fn give_up_loading() -> io::Result<()> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    for right in LOADING.iter() {
        // So that root does not get it back by `exec`. This needs a right of its own (SETPCAP).
        let _refused = remove_capability_from_bounding_set(right);
    }
    let less = |set: CapabilitySet| set.difference(LOADING);
    let sets = CapabilitySets {
        effective: less(effective),
        permitted: less(permitted),
        inheritable: less(inheritable),
    };
    set_capabilities(None, sets)?;
    debug_assert!(capabilities(None).is_ok_and(|now| !now.permitted.intersects(LOADING)));
    Ok(())
}

pub(super) fn checked(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name() {
        assert_eq!(find_user("root").expect("a database"), Some(User { uid: 0, gid: 0 }));
        assert_eq!(find_user("no user of this name").expect("a database"), None);
        assert_eq!(find_user("zero\0inside").expect("a database"), None);
    }
}
