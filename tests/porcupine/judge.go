// Judges histories with Porcupine, an independent linearizability checker, and with a small model
// of the classic verbs that shares no code with crates/check. Its results must agree with those of
// crates/check.
//
// Usage: judge FOLDER [--bad]. Every file NAME.history in the folder must be linearizable, or, with
// --bad, must not be linearizable. The header of crates/check/src/file.rs describes the format.
// With --bad, prints a line "ok" or "FAIL" for each history. Without it, prints a line "FAIL" for
// each history that is not accepted, and one line "ok" for all others. Ends with 1 if any failed.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A search that takes longer is given up without a result.
const judgeWithin = 60 * time.Second

// never is the expiry time of an item that does not expire.
const never = math.MaxInt64

// request is one parsed operation.
type request struct {
	verb     string
	flags    string
	ttl      int64
	value    string
	token    uint64
	delta    uint64
	prefix   string
	bytes    bool // whether any byte may follow the prefix
	noreply  bool
	client   int // index among the clients of this key
	ordinal  int // how many earlier operations of this client have a known outcome
	known    bool
	earliest int64
	latest   int64
}

// state is the state of one key. A token of 0: no reply has shown the token.
type state struct {
	present bool
	value   string
	flags   string
	first   int64 // the first second in which the item may expire
	last    int64 // the last second in which the item may expire
	token   uint64
	floor   uint64 // the largest token that a reply has shown
	done    string // for each client, how many of its known operations were carried out
}

// entry is one line of a history.
type entry struct {
	client   string
	invoked  int64
	returned int64
	earliest int64
	latest   int64
	request  string
	reply    string
}

type history struct {
	entries []entry
	evicts  bool
}

func number(text string, missing int64) (int64, error) {
	if text == "-" {
		return missing, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

func readHistory(path string) (history, error) {
	file, err := os.Open(path)
	if err != nil {
		return history{}, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	var result history
	for count := 1; lines.Scan(); count++ {
		line := lines.Text()
		if count == 1 {
			words := strings.Fields(line)
			if len(words) != 4 || words[0] != "kachel-history" || words[1] != "1" || words[3] != "cas" {
				return result, fmt.Errorf("%s is not a history with CAS tokens", path)
			}
			result.evicts = words[2] == "cache"
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		one, err := readEntry(strings.Split(line, "\t"))
		if err != nil {
			return result, fmt.Errorf("%s:%d: %w", path, count, err)
		}
		result.entries = append(result.entries, one)
	}
	return result, lines.Err()
}

func readEntry(fields []string) (entry, error) {
	if len(fields) != 7 {
		return entry{}, fmt.Errorf("%d fields", len(fields))
	}
	var numbers [4]int64
	for i := range numbers {
		var err error
		if numbers[i], err = number(fields[i+1], never); err != nil {
			return entry{}, err
		}
	}
	one := entry{client: fields[0], invoked: numbers[0], returned: numbers[1],
		earliest: numbers[2], latest: numbers[3], reply: "?"}
	var err error
	if one.request, err = strconv.Unquote(fields[5]); err == nil && fields[6] != "?" {
		one.reply, err = strconv.Unquote(fields[6])
	}
	return one, err
}

// parse parses a request and returns its key; a flush has none.
func parse(one entry) (*request, string, error) {
	line, block, _ := strings.Cut(one.request, "\r\n")
	words := strings.Fields(line)
	asked := &request{verb: words[0], earliest: one.earliest, latest: one.latest, known: one.reply != "?"}
	if last := len(words) - 1; words[last] == "noreply" {
		asked.noreply = true
		words = words[:last]
	}
	at := func(index int) int64 {
		value, err := strconv.ParseInt(words[index], 10, 64)
		if err != nil {
			panic(err)
		}
		return value
	}
	unsigned := func(index int) uint64 {
		value, err := strconv.ParseUint(words[index], 10, 64)
		if err != nil {
			panic(err)
		}
		return value
	}
	key := 1
	switch asked.verb {
	case "get", "gets", "delete":
	case "gat", "gats":
		asked.ttl, key = at(1), 2
	case "set", "add", "replace", "append", "prepend", "cas":
		asked.flags, asked.ttl = words[2], at(3)
		asked.value = block[:at(4)]
		if asked.verb == "cas" {
			asked.token = unsigned(5)
		}
	case "touch":
		asked.ttl = at(2)
	case "incr", "decr":
		asked.delta = unsigned(2)
	case "flush_prefix":
		asked.prefix, asked.bytes = words[1], len(words) > 2
		return asked, "", nil
	case "flush_all":
		if len(words) > 1 {
			return nil, "", fmt.Errorf("a flush with a delay is not modelled")
		}
		return asked, "", nil
	default:
		return nil, "", fmt.Errorf("%s is not modelled", asked.verb)
	}
	return asked, words[key], nil
}

// life returns the seconds between which an item expires that gets this TTL now.
func (asked *request) life() (int64, int64) {
	add := func(second int64) int64 {
		if second > never-asked.ttl {
			return never
		}
		return second + asked.ttl
	}
	switch {
	case asked.ttl == 0:
		return never, never
	case asked.ttl < 0:
		return 0, 0
	}
	return add(asked.earliest), add(asked.latest)
}

// way is one possible effect of an operation: the reply, and the state after it.
type way struct {
	reply string
	next  state
}

// shown formats a hit; a token of 0 is left out.
func shown(key string, held state, token uint64) string {
	tail := ""
	if token != 0 {
		tail = " " + strconv.FormatUint(token, 10)
	}
	return fmt.Sprintf("VALUE %s %s %d%s\r\n%s\r\nEND\r\n", key, held.flags, len(held.value), tail, held.value)
}

// shownToken returns the token in the reply to gets or gats.
func shownToken(reply string) uint64 {
	line, _, _ := strings.Cut(reply, "\r\n")
	words := strings.Fields(line)
	if len(words) != 5 {
		return 0
	}
	token, _ := strconv.ParseUint(words[4], 10, 64)
	return token
}

func read(held state, asked *request, key, reply string) []way {
	if !held.present {
		return []way{{"END\r\n", held}}
	}
	next := held
	if asked.verb == "gat" || asked.verb == "gats" {
		next.first, next.last = asked.life()
	}
	if asked.verb == "get" || asked.verb == "gat" {
		return []way{{shown(key, held, 0), next}}
	}
	token := held.token
	if token == 0 && reply == "?" {
		return []way{{"", next}}
	}
	if token == 0 {
		// No reply has shown the token yet, so it is larger than all tokens in replies.
		if token = shownToken(reply); token <= held.floor {
			return nil
		}
		next.token, next.floor = token, token
	}
	return []way{{shown(key, held, token), next}}
}

func store(held state, asked *request) []way {
	fresh := state{present: true, value: asked.value, flags: asked.flags, floor: held.floor, done: held.done}
	fresh.first, fresh.last = asked.life()
	stored, not := way{"STORED\r\n", fresh}, way{"NOT_STORED\r\n", held}
	joined := held
	joined.token = 0
	switch asked.verb {
	case "set":
		return []way{stored}
	case "add":
		if held.present {
			return []way{not}
		}
		return []way{stored}
	case "cas":
		return compareAndStore(held, asked, stored)
	}
	if !held.present {
		return []way{not}
	}
	switch asked.verb {
	case "replace":
		return []way{stored}
	case "append":
		joined.value = held.value + asked.value
	case "prepend":
		joined.value = asked.value + held.value
	}
	return []way{{"STORED\r\n", joined}}
}

func compareAndStore(held state, asked *request, stored way) []way {
	exists := way{"EXISTS\r\n", held}
	switch {
	case !held.present:
		return []way{{"NOT_FOUND\r\n", held}}
	case held.token == asked.token && asked.token != 0:
		return []way{stored}
	case held.token != 0 || asked.token <= held.floor:
		return []way{exists}
	}
	stored.next.floor = asked.token
	return []way{exists, stored}
}

func count(held state, asked *request) []way {
	if !held.present {
		return []way{{"NOT_FOUND\r\n", held}}
	}
	before, err := strconv.ParseUint(strings.TrimRight(held.value, " "), 10, 64)
	if err != nil {
		refusal := "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
		return []way{{refusal, held}}
	}
	after := before + asked.delta
	if asked.verb == "decr" {
		after = before - asked.delta
		if asked.delta > before {
			after = 0
		}
	}
	text := strconv.FormatUint(after, 10)
	next := held
	next.value = fmt.Sprintf("%-*s", len(held.value), text)
	next.token = 0
	return []way{{text + "\r\n", next}}
}

// carryOut returns all possible effects of the operation in this state.
func carryOut(held state, asked *request, key, reply string) []way {
	gone := state{floor: held.floor, done: held.done}
	switch asked.verb {
	case "get", "gets", "gat", "gats":
		return read(held, asked, key, reply)
	case "delete":
		if !held.present {
			return []way{{"NOT_FOUND\r\n", held}}
		}
		return []way{{"DELETED\r\n", gone}}
	case "touch":
		if !held.present {
			return []way{{"NOT_FOUND\r\n", held}}
		}
		next := held
		next.first, next.last = asked.life()
		return []way{{"TOUCHED\r\n", next}}
	case "incr", "decr":
		return count(held, asked)
	case "flush_all", "flush_prefix":
		return []way{{"OK\r\n", gone}}
	}
	return store(held, asked)
}

// step returns the states that may follow. There is none if the reply is impossible, or if an
// earlier operation of the same client has not been executed yet.
func step(held state, asked *request, key, reply string, evicts bool) []interface{} {
	if int(held.done[asked.client]) < asked.ordinal {
		return nil
	}
	done := []byte(held.done)
	if asked.known {
		done[asked.client]++
	}
	held.done = string(done)
	lives := []state{held}
	if held.present {
		gone := state{floor: held.floor, done: held.done}
		if asked.earliest >= held.last {
			lives = []state{gone}
		} else if evicts || asked.latest >= held.first {
			lives = append(lives, gone)
		}
	}
	var next []interface{}
	for _, life := range lives {
		if strings.HasPrefix(reply, "SERVER_ERROR") {
			next = append(next, life, state{floor: life.floor, done: life.done})
			continue
		}
		for _, way := range carryOut(life, asked, key, reply) {
			if reply == "?" || asked.noreply && reply == "" || !asked.noreply && reply == way.reply {
				next = append(next, way.next)
			}
		}
	}
	return next
}

// takes returns whether a flush of a prefix removes the key.
func takes(asked *request, key string) bool {
	rest, found := strings.CutPrefix(key, asked.prefix)
	open := asked.bytes || strings.HasSuffix(asked.prefix, ":")
	return found && (open || rest == "" || rest[0] == ':')
}

// judgeKey lets Porcupine judge the operations of one key, including flushes.
func judgeKey(key string, entries []entry, evicts bool) (porcupine.CheckResult, error) {
	sort.SliceStable(entries, func(a, b int) bool { return entries[a].invoked < entries[b].invoked })
	clients := map[string]int{}
	known := map[string][]int64{}
	var operations []porcupine.Operation
	for _, one := range entries {
		asked, _, err := parse(one)
		if err != nil {
			return porcupine.Unknown, err
		}
		if _, found := clients[one.client]; !found {
			clients[one.client] = len(clients)
		}
		asked.client = clients[one.client]
		for _, invoked := range known[one.client] {
			if invoked < one.invoked {
				asked.ordinal++
			}
		}
		if asked.known {
			known[one.client] = append(known[one.client], one.invoked)
		} else if asked.verb == "get" || asked.verb == "gets" {
			continue // A read whose outcome is unknown tells nothing and changes nothing.
		}
		if asked.ordinal > 200 {
			return porcupine.Unknown, fmt.Errorf("too many operations of one client")
		}
		operations = append(operations, porcupine.Operation{ClientId: asked.client, Input: asked,
			Output: one.reply, Call: one.invoked, Return: one.returned})
	}
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{done: strings.Repeat("\x00", len(clients))}} },
		Step: func(held, input, output interface{}) []interface{} {
			return step(held.(state), input.(*request), key, output.(string), evicts)
		},
	}
	return porcupine.CheckOperationsTimeout(model.ToModel(), operations, judgeWithin), nil
}

// judge returns a description of the error in a history, or "" if there is none.
func judge(path string) (string, int, error) {
	one, err := readHistory(path)
	if err != nil {
		return "", 0, err
	}
	keys := map[string][]entry{}
	var flushes []entry
	for _, line := range one.entries {
		_, key, err := parse(line)
		if err != nil {
			return "", 0, err
		}
		if key == "" {
			flushes = append(flushes, line)
		} else {
			keys[key] = append(keys[key], line)
		}
	}
	for key, entries := range keys {
		for _, line := range flushes {
			if asked, _, err := parse(line); err != nil {
				return "", 0, err
			} else if asked.verb == "flush_all" || takes(asked, key) {
				entries = append(entries, line)
			}
		}
		verdict, err := judgeKey(key, entries, one.evicts)
		if err != nil {
			return "", 0, err
		}
		if verdict == porcupine.Unknown {
			return "", 0, fmt.Errorf("key %s is not decided in %v", key, judgeWithin)
		}
		if verdict == porcupine.Illegal {
			return "key " + key + " is not linearizable", len(one.entries), nil
		}
	}
	return "", len(one.entries), nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: judge FOLDER [--bad]")
		os.Exit(2)
	}
	wantsBad := len(os.Args) > 2 && os.Args[2] == "--bad"
	paths, err := filepath.Glob(filepath.Join(os.Args[1], "*.history"))
	if err != nil || len(paths) == 0 {
		fmt.Printf("FAIL porcupine: no histories in %s\n", os.Args[1])
		os.Exit(1)
	}
	failed, accepted, operations := false, 0, 0
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".history")
		wrong, count, err := judge(path)
		switch {
		case err != nil:
			failed = true
			fmt.Printf("FAIL porcupine %s: %v\n", name, err)
		case wantsBad && wrong == "":
			failed = true
			fmt.Printf("FAIL porcupine %s: accepted\n", name)
		case wantsBad:
			fmt.Printf("ok porcupine rejects %s: %s\n", name, wrong)
		case wrong != "":
			failed = true
			fmt.Printf("FAIL porcupine %s: %s\n", name, wrong)
		default:
			accepted++
			operations += count
		}
	}
	if !wantsBad && !failed {
		fmt.Printf("ok porcupine accepts %d histories, %d operations\n", accepted, operations)
	}
	if failed {
		os.Exit(1)
	}
}
