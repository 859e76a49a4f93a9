# Checks the arguments of the runners in tests/. A runner sources this file before anything else.
#
# Upstream:   tests/*/run, whose leading comment is its help.
# Downstream: the runner continues, or its process ends here.

# Prints the help and exits if an argument is -h or --help. Exits with an error if there are more
# than $1 arguments.
arguments_at_most() {
    local most=$1 argument
    shift
    for argument in "$@"; do
        if [ "$argument" = -h ] || [ "$argument" = --help ]; then
            sed -n -e '1d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"
            exit 0
        fi
    done
    if [ "$#" -gt "$most" ]; then
        echo "$0: takes at most $most arguments, has $#; --help says which" >&2
        exit 2
    fi
}
