# shellcheck shell=bash
# Prints how to talk to a server that starts with given options. ./run sources this file.
#
# Reads -p, -s and -l in their usual spellings. Options can also be bundled or abbreviated; then this script
# guesses no port, because the server prints it anyway.

# Finds where `kachel serve OPTION...` will listen. Sets talk_socket, or talk_host and talk_port;
# talk_port is empty when only the server can tell.
talk_place() {
    talk_host=127.0.0.1
    talk_port=11211
    talk_socket=
    local value name
    while [ $# -gt 0 ]; do
        name=
        value=
        case $1 in
        --) break ;;
        -p | --port | -s | --unix-socket | -l | --listen) name=$1 value=${2-} && shift ;;
        --port=* | --unix-socket=* | --listen=*) name=${1%%=*} value=${1#*=} ;;
        -[psl]*) name=${1:0:2} value=${1:2} ;;
        --po* | --unix-s* | -[ACdFiLMrSvVWX]*[psl]*) name=unknown ;;
        -[abBcDefImnNoPRtuUY]) shift ;; # The next word is its value.
        esac
        shift || true
        case $name in
        '') ;;
        -p | --port) talk_port_is "$value" ;;
        -s | --unix-socket) talk_socket=$value ;;
        -l | --listen) talk_host_is "$value" ;;
        *) talk_port= ;;
        esac
    done
}

# With port 0 the kernel chooses the port when the server listens.
talk_port_is() {
    case $1 in
    '' | *[!0-9]* | 0*) talk_port= ;;
    *) talk_port=$1 ;;
    esac
}

# This script prints no port for several addresses, addresses with ports, and IPv6; the server
# prints them.
talk_host_is() {
    case $1 in
    '*' | 0.0.0.0 | localhost) talk_host=127.0.0.1 ;;
    '' | *[!0-9a-zA-Z.-]*) talk_port= ;;
    *) talk_host=$1 ;;
    esac
}

# Prints how to talk to `kachel serve OPTION...`.
talk_hint() {
    # shellcheck disable=SC2016 # Another shell expands the printed line.
    local words='set tile 0 0 5\r\nhello\r\nget tile\r\nquit\r\n' place line
    talk_place "$@"
    if [ -n "$talk_socket" ]; then
        place=$(printf %q "$talk_socket")
        line="printf '$words' | nc -U $place      # netcat-openbsd"
    else
        line="{ printf '$words' >&3; cat <&3; } 3<>/dev/tcp/$talk_host/${talk_port:-PORT}"
    fi
    echo
    if [ -n "$talk_socket$talk_port" ]; then
        echo "Talk to it from another bash:"
    else
        echo "Talk to it from another bash, at the address and PORT that the server prints below:"
    fi
    printf '    %s\n' "$line"
    echo "Any memcached client will do; Ctrl-C ends the server."
    echo
}
