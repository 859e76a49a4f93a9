# shellcheck shell=bash
# The build that the stages under target/debug share. Sourced, never run.
#
#   workspace    the words for cargo: all packages, with TLS and the pipe. A stage that leaves one out builds
#                packages again, because cargo chooses the features of a package by what is built with it
#
# The default build, without these features, is the release build: the stage `build` checks what it refuses,
# and clients speak to it.

# shellcheck disable=SC2034 # The script that sources this file reads it.
workspace=(--workspace --locked --features "kachel/tls,kachel-load/tls,kachel-options/tls,kachel/pipe")
