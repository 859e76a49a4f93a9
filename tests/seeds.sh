# shellcheck shell=bash
# Computes new seeds for each state of the tree, and judges a new seed that fails.
#
# Upstream:   the runners of random suites source this file, in the tree's root.
# Downstream: prints lines ok, FAIL and found; adds to tests/found_seeds.txt; builds the parent commit
#             under target/parent.
#
# - N1  The same tree has the same new seeds: they are computed from the contents of `crates tests fuzz
#   Cargo.lock`, committed or not. Without git they are computed from the committed seed, tests/seed.txt.
# - N2  The files that the tests write themselves (found seeds, found inputs) change neither the seeds nor
#   the choice of the parent, so that a second run repeats the first.
# - N3  A new seed that fails is tried on the parent commit. If the parent fails too, the fault is older
#   than the change: the seed is `found` and joins the list, and the suite does not fail. Otherwise the
#   suite fails.
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
        { xargs -0 sha256sum 2>/dev/null || true; } | # sha256sum fails for files that were removed.
        sha256sum | cut -d' ' -f1
}

# The new seed of suite $1: a number from 1 to 2^31.
new_seed() {
    local hash
    hash=$(tree_hash) || hash=$(grep -v '^#' tests/seed.txt) # N1
    hash=$(printf '%s %s\n' "$hash" "$1" | sha256sum | cut -c1-8)
    echo $(((16#$hash & 0x7fffffff) + 1))
}

# The parent of this tree: HEAD if there are uncommitted changes, else the commit before it. Fails if there
# is none.
parent_commit() {
    has_git || return 1
    if [ -n "$(git status --porcelain -- "${seed_paths[@]}" "${written_by_tests[@]}")" ]; then
        git rev-parse -q --verify HEAD
    else
        git rev-parse -q --verify HEAD~1
    fi
}

# Makes target/parent/tree equal to the parent commit; prints its path.
parent_tree() {
    local commit folder=$PWD/target/parent
    commit=$(parent_commit) || return 1
    if [ "$(cat "$folder/commit" 2>/dev/null)" != "$commit" ]; then
        rm -rf "$folder/tree" "$folder/commit"
        mkdir -p "$folder/tree"
        # Files get the present time (-m), because cargo builds only files that are newer than the last build.
        git archive "$commit" | tar -x -m -C "$folder/tree" || return 1
        echo "$commit" >"$folder/commit"
    fi
    echo "$folder/tree"
}

# Runs the command on the parent commit. Ends with 0 if it fails there, 1 if it passes there, 2 if it could
# not run. Its output is left in target/parent/log.
fails_on_parent() {
    local tree log=$PWD/target/parent/log
    tree=$(parent_tree) || return 2
    # The suites may have set the folder for builds of this tree; the parent has its own.
    if (cd "$tree" && env CARGO_TARGET_DIR="$PWD/../build" "$@") >"$log" 2>&1 </dev/null; then
        return 1
    fi
    if grep -q -E '^error(\[E[0-9]+\])?: (could not compile|.*cannot)|^error: no ' "$log"; then return 2; fi
    grep -q -E '^test .* FAILED|^test result: FAILED|panicked at|^FAIL|SUMMARY: |ERROR: ' "$log" || return 2
}

# Prints the seeds of suite $1 in the list on stdin.
seeds_of() {
    awk -v suite="$1" '!/^#/ && $1 == suite { print $2 }'
}

# Prints the seeds of suite $1 in this tree's list.
found_seeds() {
    seeds_of "$1" <"$found_list"
}

# Succeeds if seed $2 of suite $1 is in the parent's list.
is_known_to_parent() {
    local commit
    commit=$(parent_commit) || return 1
    git show "$commit:$found_list" 2>/dev/null | seeds_of "$1" | grep -q -F -x -- "$2"
}

# Judges seed $2 of suite $1, which has failed here. $3 is the failure's message, and the rest is the
# command that tries this seed alone in the root of any tree. Fails if the change caused the fault. N3, N4
judge_failed_seed() {
    local suite=$1 seed=$2 said=$3 status=0 commit
    shift 3
    if is_known_to_parent "$suite" "$seed"; then
        echo "FAIL $suite.$seed was in $found_list before this change, and still fails: $said"
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
