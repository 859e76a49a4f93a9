# Starts the servers that a runner speaks to. A runner sources this file.
#
# Upstream:   tests/clients/run, tests/memccapable/run, tests/tool/run.
# Downstream: any server that takes memcached's options.

scratch=
server_pids=()

# Sets `scratch`, a folder that all users may enter, because servers drop root. It is removed at the end.
make_scratch() {
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    mkdir -m 1777 "$scratch/port"
    trap stop_servers EXIT
}

# Starts the command $2... with memcached's options, on an ephemeral port of 127.0.0.1, and sets `port`.
# The server ends with the runner. If it announces no port, prints a failure of $1 and exits.
start_server() {
    local name=$1 file log pid _
    shift
    [ -n "$scratch" ] || make_scratch
    file=$scratch/port/${#server_pids[@]}
    log=$scratch/log-${#server_pids[@]}
    MEMCACHED_PORT_FILENAME=$file "$@" -p -1 -U 0 -l 127.0.0.1 -u nobody -m 64 >"$log" 2>&1 &
    pid=$!
    server_pids+=("$pid")

    # The server writes its port once it listens; 30 s is enough on a busy machine.
    for _ in $(seq 600); do
        if [ -s "$file" ] || ! kill -0 "$pid" 2>/dev/null; then break; fi
        sleep 0.05
    done
    port=$(sed -n 's/^TCP INET: //p' "$file" 2>/dev/null | head -n 1 || true)
    if [ -z "$port" ]; then
        echo "FAIL $name.start the server announced no port; the end of its log:"
        tail -n 5 "$log"
        exit 1
    fi
}

# Ends the servers that still run. Another process may have the number of one that has ended.
stop_servers() {
    local running
    running=$(jobs -pr)
    # shellcheck disable=SC2086 # One word a number.
    if [ -n "$running" ]; then
        kill $running 2>/dev/null || true
        wait $running 2>/dev/null || true
    fi
    rm -rf "$scratch"
}
