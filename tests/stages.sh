# The bookkeeping of ./test: runs a stage, counts what its log says, prints one line for it.
#
# Upstream:   ./test sources this file and calls `stage`; tests/scripts/run tests the counters.
# Downstream: writes one log a stage under $logs; adds to $passed, $failed and $skipped.
#
# - S1  A stage that ran nothing has failed: silence is no proof.
# - S2  A skip counts as one only if $allowed_skips names it; any other is a failure.
# - S3  A command that fails without naming a failed check is one failure.

# - S4  A log ends with a line that says what came of its stage, when and at which commit; until then
#   the stage has not ended.

# The folder of logs and the committed list of skips, set by who sources this.
: "${logs:?}" "${allowed_skips:?}"

passed=0
failed=0
skipped=0
stage_number=0

# How many lines of file $2 match the extended expression $1.
count_lines() {
    grep -c -E -- "$1" "$2" || true
}

# Sums one column of cargo's "test result:" lines. $1: passed, failed or ignored; $2: the log.
sum_results() {
    grep -E '^test result:' "$2" | grep -o -E "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }'
}

# The names of skipped checks in the log $1: cargo's ignored tests and lines "skip NAME".
skip_names() {
    sed -n -E -e 's/^test (.*) \.\.\. ignored.*$/\1/p' -e 's/^skip ([^ ]+).*$/\1/p' "$1"
}

# Does the committed list name $1?
skip_allowed() {
    awk -v name="$1" 'index($0, name "  ") == 1 { found = 1 } END { exit !found }' "$allowed_skips"
}

# Prints "PASSED FAILED SKIPPED" for the log $3 of a command that ended with status $2.
# $1 says how the log is read: `whole` (the command is one check), `cargo` (test results) or
# `lines` (lines that begin with ok, FAIL or skip).
count_log() {
    local how=$1 status=$2 log=$3 good=0 bad=0 idle=0 name
    case $how in
    whole) if [ "$status" -eq 0 ]; then good=1; else bad=1; fi ;;
    cargo)
        good=$(sum_results passed "$log")
        bad=$(sum_results failed "$log")
        ;;
    lines)
        good=$(count_lines '^ok ' "$log")
        bad=$(count_lines '^FAIL ' "$log")
        ;;
    esac
    while IFS= read -r name; do
        if skip_allowed "$name"; then # S2
            idle=$((idle + 1))
        else
            bad=$((bad + 1))
        fi
    done < <(skip_names "$log")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi # S3
    if [ $((good + bad + idle)) -eq 0 ]; then bad=1; fi        # S1
    echo "$good $bad $idle"
}

# Shows what a reader needs of a failed stage's log: the failures by name, then its end. Everything is
# read to its end: who closes a pipe early ends the whole run, and with it the stages to come.
show_failure() {
    grep -n -E '^(FAIL|error(\[|:)|test .* FAILED)' "$1" |
        sed -n '1,20s/^/    | /p' || true
    awk '/^failures:$/ { shown = 1 } shown; /^test result: FAILED/ { shown = 0 }' "$1" |
        sed -n '1,60s/^/    | /p'
    skip_names "$1" | while IFS= read -r name; do
        skip_allowed "$name" ||
            echo "    | skipped, but not named in tests/allowed_skips.txt: $name"
    done
    tail -n 20 "$1" | sed 's/^/    | /'
    echo "    the whole log: $1"
}

# When this is, of which commit, and in which form: "2026-01-31 abc1234, long form".
this_run() {
    local commit
    commit=$(git describe --always --dirty 2>/dev/null) || commit="no commit"
    echo "$(date +%Y-%m-%d) $commit${KACHEL_FULL:+, long form}"
}

# Runs one stage: stage NAME HOW COMMAND... Its output goes to $logs/NAME.log. Never fails itself; the
# command runs in a subshell, so that it may end as it likes.
stage() {
    local name=$1 how=$2 log status=0 good bad idle began=$SECONDS
    shift 2
    if ! stage_wanted "$name"; then return 0; fi
    stage_number=$((stage_number + 1))
    log=$logs/$name.log
    printf '[%d] %-12s ' "$stage_number" "$name"
    ("$@") >"$log" 2>&1 </dev/null || status=$?
    read -r good bad idle < <(count_log "$how" "$status" "$log")
    passed=$((passed + good))
    failed=$((failed + bad))
    skipped=$((skipped + idle))
    echo "stage $name ended: $good passed, $bad failed, $idle skipped; $(this_run)" >>"$log" # S4
    printf '%d passed, %d failed, %d skipped (%d s)\n' "$good" "$bad" "$idle" $((SECONDS - began))
    if [ "$bad" -ne 0 ]; then show_failure "$log"; fi
}
