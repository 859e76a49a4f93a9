# shellcheck shell=bash
# Finds the flags that turn AddressSanitizer on with the installed Rust. Sourced, never run.
#
#   asan_flags       prints the flags; if no runtime is found, prints one sentence and fails
#   coverage_flags   prints the flags that show a fuzzer which code an input reached; with the
#                    argument `compares`, also which values were compared
#   rust_target      prints the target's name; with `--target`, cargo builds build scripts without
#                    these flags
#
# Sanitizers are unstable: their flags need RUSTC_BOOTSTRAP=1. A build of the product must not set
# it.

export RUSTC_BOOTSTRAP=1

rust_target() {
    rustc -vV | sed -n 's/^host: //p'
}

# Uses Rust's own runtime if the toolchain has it, else the C compiler's, which has the same
# interface. The C compiler's runtime must be the first library of the program; otherwise it refuses
# to start. Debian's compiler leaves out a library that no earlier object needs, unless
# --no-as-needed is set.
asan_flags() {
    local root target
    root=$(rustc --print sysroot)
    target=$(rust_target)
    if compgen -G "$root/lib/rustlib/$target/lib/librustc*asan.a" >/dev/null; then
        echo "-Zsanitizer=address"
    elif [ -e "$(cc -print-file-name=libasan.so)" ]; then
        echo "-Zsanitizer=address -Zexternal-clangrt" \
            "-Zpre-link-arg=-Wl,--no-as-needed -Zpre-link-arg=-lasan"
    else
        echo "no runtime of AddressSanitizer: neither this Rust nor the C compiler has one;" \
            "install gcc with its libasan, or a Rust by rustup" >&2
        return 1
    fi
}

# The flags that cargo-fuzz uses: they count edges.
coverage_flags() {
    echo "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4" \
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters" \
        "-Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing" \
        "${1:+-Cllvm-args=-sanitizer-coverage-trace-compares}"
}
