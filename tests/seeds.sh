# shellcheck shell=bash
# New seeds for each state of the tree, and what becomes of one that fails.
#
# Upstream:   the runners of suites that choose at random source this file, in the tree's root.
# Downstream: prints lines ok, FAIL and found; adds to tests/found_seeds.txt; builds the parent commit
#             under target/parent.
#
# - N1  The same tree has the same new seeds: they follow from the contents of `crates tests fuzz
#   Cargo.lock`, committed or not. Without git there is the committed seed, tests/seed.txt.
# - N2  What the tests write themselves (found seeds, found inputs) changes neither the seeds nor what
#   counts as the parent, so that a second run repeats the first.
# - N3  A new seed that fails is tried on the parent commit. If the parent fails too, the fault is older
#   than the change: the seed is `found`, joins the list, and fails nothing. Else it fails.
# - N4  A seed that is in the parent's list must pass: the change after the one that listed it fixes it.

found_list=tests/found_seeds.txt
seed_paths=(crates tests fuzz Cargo.lock)
# N2
written_by_tests=(':(exclude)tests/found_seeds.txt' ':(exclude)fuzz/regressions')

has_git() {
    git rev-parse --is-inside-work-tree >/dev/null 2>&1
}

# A hash of the tree's contents; fails without git.
tree_hash() {
    has_git || return 1
    git ls-files -z --cached --others --exclude-standard -- "${seed_paths[@]}" \
        "${written_by_tests[@]}" | LC_ALL=C sort -z -u |
        { xargs -0 sha256sum 2>/dev/null || true; } | # A file that was removed is no part of it.
        sha256sum | cut -d' ' -f1
}

# The new seed of suite $1: a number from 1 to 2^31.
new_seed() {
    local hash
    hash=$(tree_hash) || hash=$(grep -v '^#' tests/seed.txt) # N1
    hash=$(printf '%s %s\n' "$hash" "$1" | sha256sum | cut -c1-8)
    echo $(((16#$hash & 0x7fffffff) + 1))
}

# The commit that this tree is a change of: HEAD where something is not committed, else the one before
# it. Fails where there is none.
parent_commit() {
    has_git || return 1
    if [ -n "$(git status --porcelain -- "${seed_paths[@]}" "${written_by_tests[@]}")" ]; then
        git rev-parse -q --verify HEAD
    else
        git rev-parse -q --verify HEAD~1
    fi
}

# Makes target/parent/tree the parent commit; prints its path.
parent_tree() {
    local commit folder=$PWD/target/parent
    commit=$(parent_commit) || return 1
    if [ "$(cat "$folder/commit" 2>/dev/null)" != "$commit" ]; then
        rm -rf "$folder/tree" "$folder/commit"
        mkdir -p "$folder/tree"
        # Files are as old as they are here, not as in the commit: cargo builds what is newer.
        git archive "$commit" | tar -x -m -C "$folder/tree" || return 1
        echo "$commit" >"$folder/commit"
    fi
    echo "$folder/tree"
}

# Does the command fail on the parent commit, too? 0: it fails there, 1: it passes there, 2: it could not
# be tried. Its output is left in target/parent/log.
fails_on_parent() {
    local tree log=$PWD/target/parent/log
    tree=$(parent_tree) || return 2
    # What the suites put into the environment for builds of this tree is not for that one.
    if (cd "$tree" && env CARGO_TARGET_DIR="$PWD/../build" "$@") >"$log" 2>&1 </dev/null; then
        return 1
    fi
    if grep -q -E '^error(\[E[0-9]+\])?: (could not compile|.*cannot)|^error: no ' "$log"; then return 2; fi
    grep -q -E '^test .* FAILED|^test result: FAILED|panicked at|^FAIL|SUMMARY: |ERROR: ' "$log" || return 2
}

# The listed seeds of suite $1, in the list that comes on stdin.
seeds_of() {
    awk -v suite="$1" '!/^#/ && $1 == suite { print $2 }'
}

# The listed seeds of suite $1.
found_seeds() {
    seeds_of "$1" <"$found_list"
}

# Is seed $2 of suite $1 in the parent's list?
is_known_to_parent() {
    local commit
    commit=$(parent_commit) || return 1
    git show "$commit:$found_list" 2>/dev/null | seeds_of "$1" | grep -q -F -x -- "$2"
}

# Judges seed $2 of suite $1 that has failed here; $3 says what it showed, and the rest is the command
# that tries this seed alone, in the root of any tree. False if the change is to blame. N3, N4
judge_failed_seed() {
    local suite=$1 seed=$2 said=$3 status=0 commit
    shift 3
    if is_known_to_parent "$suite" "$seed"; then
        echo "FAIL $suite.$seed is in $found_list since before this change, and fails: $said"
        return 1
    fi
    fails_on_parent "$@" || status=$?
    case $status in
    0)
        commit=$(parent_commit)
        echo "found $suite.$seed fails on the parent commit ${commit:0:12} as well: $said"
        if ! found_seeds "$suite" | grep -q -F -x -- "$seed"; then
            echo "$suite $seed  ${commit:0:12}  ${said:0:120}" >>"$found_list"
        fi
        ;;
    1)
        echo "FAIL $suite.$seed passes on the parent commit: $said"
        return 1
        ;;
    *)
        echo "FAIL $suite.$seed could not be tried on the parent commit: $said"
        return 1
        ;;
    esac
}
