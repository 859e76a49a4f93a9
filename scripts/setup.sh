# shellcheck shell=bash
# Installs what ./run and ./test need before they can build: packages and Rust. Sourced, never run.
#
#   need_packages gcc libc6-dev    installs missing packages with apt, and prints what it installs
#   need_rust                      finds or installs a Rust that is new enough, and puts it in PATH
#
# Both are quick and print nothing if nothing is missing. If they cannot install something, they end the
# script with one sentence. Neither prompts.

setup_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

# Go and Maven find their caches only by HOME. A container or a service may start a script without it.
if [ -z "${HOME-}" ]; then
    HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || HOME=
    export HOME=${HOME:-/}
fi

setup_say() { printf '%s\n' "$*" >&2; }

setup_die() {
    setup_say "$*"
    exit 1
}

# as_root command...: runs it as root; another user needs a sudo that does not prompt.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 126
    fi
}

# apt_fresh: updates the package lists once a script, and only if something must be installed.
apt_fresh() {
    [ -z "${setup_apt_is_fresh-}" ] || return 0
    as_root apt-get update -qq >&2 || return
    setup_apt_is_fresh=1
}

package_is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# need_packages package...: installs the packages that are missing.
need_packages() {
    command -v apt-get >/dev/null || {
        setup_say "This system has no apt-get. Please make sure that these are installed: $*"
        return 0
    }
    local package missing=()
    for package in "$@"; do
        package_is_installed "$package" || missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0

    setup_say "Installing by apt: ${missing[*]}"
    apt_fresh || setup_die "Please run as root: apt-get update && apt-get install ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
        setup_die "apt could not install: ${missing[*]}"
}

# rust_wanted: the oldest Rust that builds the workspace, from its Cargo.toml.
rust_wanted() {
    sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$setup_root/Cargo.toml" | head -n 1
}

# version_at_least have wanted: succeeds if the version `have` is `wanted` or newer.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# rust_is_new_enough: succeeds if `cargo` and `rustc` are in PATH and new enough.
rust_is_new_enough() {
    local have
    command -v cargo >/dev/null || return 1
    have=$(cd / && rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    [ -n "$have" ] && version_at_least "$have" "$(rust_wanted)"
}

# rust_from_apt: installs the first pair of packages that is new enough; fails if there is none.
rust_from_apt() {
    command -v apt-get >/dev/null || return 1
    apt_fresh || return 1
    local pair have
    for pair in "rustc cargo" "rustc-web cargo-web"; do
        have=$(apt-cache policy "${pair%% *}" | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
        if [ -n "$have" ] && version_at_least "$have" "$(rust_wanted)"; then
            # shellcheck disable=SC2086  # the pair is two words
            need_packages $pair
            return 0
        fi
    done
    return 1
}

# rust_advice: a sentence about where a Rust that is new enough comes from. Debian 12 has it in its repository of
# security updates, which a minimal system may not name. The file that says which system this is may be another
# one, for tests.
rust_advice() {
    local system policy repository="http://deb.debian.org/debian-security bookworm-security main"
    system=$(sed -n -e 's/^ID=//p' -e 's/^VERSION_CODENAME=//p' "${setup_os_release:-/etc/os-release}" 2>/dev/null)
    policy=$(apt-cache policy 2>/dev/null) || policy=
    if [[ " ${system//$'\n'/ } " == *" debian "* && " ${system//$'\n'/ } " == *" bookworm "* &&
        $policy != *n=bookworm-security* ]]; then
        echo "Debian's security updates have it, as the packages rustc-web and cargo-web. Please run as root:" \
            "echo 'deb $repository' >/etc/apt/sources.list.d/security.list, and start again." \
            "https://rustup.rs has it, too."
    else
        echo "Please install it from https://rustup.rs and start again."
    fi
}

# need_rust: afterwards `cargo` in PATH is new enough.
need_rust() {
    rust_is_new_enough && return
    if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        export PATH
        rust_is_new_enough && return
    fi
    if command -v rustup >/dev/null; then
        setup_say "Installing by rustup: the stable toolchain"
        if rustup toolchain install stable --profile minimal >&2; then
            export RUSTUP_TOOLCHAIN=stable
            rust_is_new_enough && return
        fi
    fi
    if rust_from_apt; then
        hash -r
        # An older cargo of another origin may stand before Debian's.
        rust_is_new_enough || PATH="/usr/bin:$PATH"
        export PATH
        rust_is_new_enough && return
    fi
    setup_die "Kachel needs Rust $(rust_wanted) or newer, and this script could not install it." \
        "$(rust_advice)"
}
