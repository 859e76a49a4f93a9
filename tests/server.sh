# Starts the server that a runner speaks to. A runner sources this file.
#
# Upstream:   tests/clients/run, tests/memccapable/run.
# Downstream: any server that takes memcached's options.

# Starts the command $2... with memcached's options, on an ephemeral port of 127.0.0.1, and sets `port`
# and `scratch`, a folder that is removed at the end. The server ends with the runner. If it announces no
# port, prints a failure of $1 and exits.
start_server() {
    local name=$1 _
    shift
    # The server writes the port file after it has dropped root, so the folder is writable for all users.
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    mkdir -m 1777 "$scratch/port"
    MEMCACHED_PORT_FILENAME=$scratch/port/file "$@" -p -1 -U 0 -l 127.0.0.1 -u nobody -m 64 \
        >"$scratch/log" 2>&1 &
    server_pid=$!
    trap stop_server EXIT

    # The server writes its port once it listens; 30 s is enough on a busy machine.
    for _ in $(seq 600); do
        if [ -s "$scratch/port/file" ] || ! kill -0 "$server_pid" 2>/dev/null; then break; fi
        sleep 0.05
    done
    port=$(sed -n 's/^TCP INET: //p' "$scratch/port/file" 2>/dev/null | head -n 1 || true)
    if [ -z "$port" ]; then
        echo "FAIL $name.start the server announced no port; the end of its log:"
        tail -n 5 "$scratch/log"
        exit 1
    fi
}

stop_server() {
    kill "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
    rm -rf "$scratch"
}
