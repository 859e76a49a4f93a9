# The bookkeeping of ./test: runs a stage, counts the results in its log, and prints one line for
# it.
#
# Upstream:   ./test sources this file and calls `stage`, in lanes; tests/scripts/run tests it.
# Downstream: writes a log and a file of counts for each stage under $logs; `add_up` reads the counts.
#
# - S1  A stage whose log has no result counts as one failure.
# - S2  A skip counts as a skip only if $allowed_skips names it. Any other skip is a failure.
# - S3  A command that fails without naming a failed check is one failure.
# - S4  The last line of a log shows the stage's counts, the date and the commit. A log without this
#   line belongs to a stage that has not ended.
# - S5  A stage that began but left no counts is one failure.

# The script that sources this file sets the folder of logs and the committed list of skips.
: "${logs:?}" "${allowed_skips:?}"

passed=0
failed=0
skipped=0
# The process groups of the lanes that run.
lanes=()

# Prints how many lines of file $2 match the extended expression $1.
count_lines() {
    grep -c -E -- "$1" "$2" || true
}

# Prints the sum of one column of cargo's "test result:" lines. $1: passed, failed or ignored; $2:
# the log.
sum_results() {
    # A log without a result, as of a build that failed, is no error here: S3 and S1 count it.
    { grep -E '^test result:' "$2" || true; } | { grep -o -E "[0-9]+ $1" || true; } |
        awk '{ n += $1 } END { print n + 0 }'
}

# Prints the names of skipped checks in the log $1: cargo's ignored tests and lines "skip NAME".
skip_names() {
    sed -n -E -e 's/^test (.*) \.\.\. ignored.*$/\1/p' -e 's/^skip ([^ ]+).*$/\1/p' "$1"
}

# Succeeds if the committed list names $1.
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

# Prints the failures in a failed stage's log by name, and then the end of the log. Each command
# reads its input to the end: closing a pipe early would make the pipe fail, and so end the whole
# run.
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

# Prints the date, the commit and the form of this run, for example "2026-01-31 abc1234, long form".
this_run() {
    local commit
    commit=$(git describe --always --dirty 2>/dev/null) || commit="no commit"
    echo "$(date +%Y-%m-%d) $commit${KACHEL_FULL:+, long form}"
}

# Prints $1 seconds as minutes with one decimal place, for example "12.3".
minutes() {
    echo "$(($1 / 60)).$(($1 % 60 / 6))"
}

# Runs one stage: stage NAME HOW COMMAND... The command's output goes to $logs/NAME.log, the counts
# and the seconds to $logs/NAME.counts. Never fails itself; the command runs in a subshell, so that
# it may exit. Prints the stage's line with one write, because another lane may print at the same
# time. The line shows minutes by the clock and minutes of processors; the other lane makes only the
# former longer.
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

# Begins a lane: lane FUNCTION. Its stages run in parallel with those of other lanes. With
# KACHEL_FULL=1 the suites judge times, so the lane runs alone and ends before this returns. A lane
# is a process group, so that end_lanes can end all of its processes.
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

# Begins a stage that mostly waits: beside stage ARGUMENT... It runs beside the next stages of its lane, in the
# lane's process group; the lane waits for it at its end. With KACHEL_FULL=1 it runs alone.
beside() {
    if [ "${KACHEL_FULL-}" = 1 ]; then "$@"; else "$@" & fi
}

# Waits for all lanes. A lane that breaks off leaves a stage without counts (S5).
join_lanes() {
    local group
    for group in "${lanes[@]}"; do wait "$group" || true; done
    lanes=()
}

# Ends all processes that still run in lanes. Another process may have the number of a lane that has ended.
end_lanes() {
    local group
    for group in $(jobs -pr); do
        if [[ " ${lanes[*]} " == *" $group "* ]]; then kill -TERM -- "-$group" 2>/dev/null || true; fi
    done
    lanes=()
}

# Forgets the counts of an earlier run.
forget_counts() {
    rm -f "$logs"/*.counts
}

# Sets $passed, $failed and $skipped to the sums over all stages that began.
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

# Prints the faults that the stages found and that the parent commit has as well. They are no
# failures, but a maintainer must read them.
show_found() {
    local file
    for file in "$logs"/*.counts; do
        [ -e "$file" ] || continue
        grep '^found ' "${file%.counts}.log" || true
    done
}
