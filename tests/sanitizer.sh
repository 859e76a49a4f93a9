# shellcheck shell=bash
# Which flags turn AddressSanitizer on with the Rust that is here. Sourced, never run.
#
#   asan_flags       prints them; fails, with one sentence, where no runtime is found
#   coverage_flags   prints the flags that show a fuzzer which code an input reached; with the argument
#                    `compares`, also which values were compared
#   share_the_build  exports what the stages `asan` and `fuzz` build with: one folder, the same flags and
#                    the profile `sim`, so that what both need is built once; fails as asan_flags does
#   rust_target      prints the target's name, which must be given so that build scripts are spared
#
# Sanitizers are unstable: their flags need RUSTC_BOOTSTRAP=1, which no build of the product may see.

export RUSTC_BOOTSTRAP=1

rust_target() {
    rustc -vV | sed -n 's/^host: //p'
}

# Uses Rust's own runtime if the toolchain has it, else the C compiler's, which has the same interface. The
# C compiler's must be the first library of the program, or it refuses to start. Debian's compiler leaves
# out a library that no earlier object needs, hence --no-as-needed.
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

# In tests that no fuzzer runs, the runtime's empty functions receive the coverage.
share_the_build() {
    local flags
    flags=$(asan_flags) || return 1
    RUSTFLAGS="$(coverage_flags compares) $flags"
    export RUSTFLAGS
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/sanitized
    export CARGO_PROFILE_SIM_LTO=off
}
