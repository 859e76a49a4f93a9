# The bookkeeping of ./test: runs a stage, counts what its log says, prints one line for it.
#
# Upstream:   ./test sources this file and calls `stage`, in lanes; tests/scripts/run tests it.
# Downstream: writes a log and a file of counts for each stage under $logs; `add_up` reads the counts.
#
# - S1  A stage that ran nothing has failed: silence is no proof.
# - S2  A skip counts as one only if $allowed_skips names it; any other is a failure.
# - S3  A command that fails without naming a failed check is one failure.
# - S4  A log ends with a line that says what came of its stage, when and at which commit; until then
#   the stage has not ended.
# - S5  A stage that was begun and left no counts is one failure.

# The folder of logs and the committed list of skips, set by who sources this.
: "${logs:?}" "${allowed_skips:?}"

passed=0
failed=0
skipped=0
# Process groups of the lanes that were begun.
lanes=()

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
# $1 says how the log is read: `whole` (the command is one check), `cargo` (test results), `lines`
# (lines that begin with ok, FAIL or skip) or `both` (test results and lines).
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
    both)
        good=$(($(sum_results passed "$log") + $(count_lines '^ok ' "$log")))
        bad=$(($(sum_results failed "$log") + $(count_lines '^FAIL ' "$log")))
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

# "12.3" for so many seconds: minutes, with one place.
minutes() {
    echo "$(($1 / 60)).$(($1 % 60 / 6))"
}

# Runs one stage: stage NAME HOW COMMAND... Its output goes to $logs/NAME.log, its counts and its
# seconds to $logs/NAME.counts. Never fails itself; the command runs in a subshell, so that it may end
# as it likes. Prints its line at once, since stages of two lanes end at any time: minutes of the clock,
# and of processors, which do not grow when the other lane takes its share.
stage() {
    local name=$1 how=$2 log status=0 good bad idle seconds began=$SECONDS TIMEFORMAT='%U %S' busy
    shift 2
    if ! stage_wanted "$name"; then return 0; fi
    log=$logs/$name.log
    echo begun >"$logs/$name.counts" # S5
    { time { ("$@") >"$log" 2>&1 </dev/null; }; } 2>"$logs/$name.times" || status=$?
    busy=$(awk '{ print int($1 + $2) }' "$logs/$name.times")
    read -r good bad idle < <(count_log "$how" "$status" "$log")
    seconds=$((SECONDS - began))
    echo "stage $name ended: $good passed, $bad failed, $idle skipped; $(this_run)" >>"$log" # S4
    echo "$good $bad $idle $seconds" >"$logs/$name.counts"
    printf '%s\n' "$(
        printf '%-12s %5s min (%s of processors)  %d passed, %d failed, %d skipped' \
            "$name" "$(minutes "$seconds")" "$(minutes "$busy")" "$good" "$bad" "$idle"
        if [ "$bad" -ne 0 ]; then
            echo
            show_failure "$log"
        fi
    )"
}

# Begins a lane: lane FUNCTION, whose stages run beside those of other lanes; where times are judged
# (KACHEL_FULL=1), at once and alone. A lane is a process group, so that it can be ended as one.
lane() {
    if [ "${KACHEL_FULL-}" = 1 ]; then
        "$1"
        return
    fi
    set -m
    ("$1") &
    set +m
    lanes+=("$!")
}

# Waits for all lanes. One that breaks off leaves a stage without counts (S5).
join_lanes() {
    local group
    for group in "${lanes[@]}"; do wait "$group" || true; done
    lanes=()
}

# Ends what still runs in lanes.
end_lanes() {
    local group
    for group in "${lanes[@]}"; do kill -TERM -- "-$group" 2>/dev/null || true; done
    lanes=()
}

# Forgets the counts of an earlier run.
forget_counts() {
    rm -f "$logs"/*.counts
}

# Sets $passed, $failed and $skipped to the sums over all stages that were begun.
add_up() {
    local file good bad idle
    passed=0 failed=0 skipped=0
    for file in "$logs"/*.counts; do
        [ -e "$file" ] || continue
        read -r good bad idle _ <"$file"
        if [ "$good" = begun ]; then good=0 bad=1 idle=0; fi # S5
        passed=$((passed + good))
        failed=$((failed + bad))
        skipped=$((skipped + idle))
    done
}

# What the stages found that the parent commit has as well: it fails nothing, but must be read.
show_found() {
    local file
    for file in "$logs"/*.counts; do
        [ -e "$file" ] || continue
        grep '^found ' "${file%.counts}.log" || true
    done
}
