// Checks a memcached server with gomemcache.
//
// Usage: checks HOST:PORT[,...]. Uses the first server and ignores further arguments. Prints one line
// a check, "ok NAME" or "FAIL NAME why"; ends with 1 if any failed.
package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	bigBytes      = 1000000
	expireWithin  = 4 * time.Second
	pollInterval  = 50 * time.Millisecond
	multigetCount = 100
)

// isValue returns an error unless the key holds exactly the wanted bytes.
func isValue(client *memcache.Client, key, wanted string) error {
	item, err := client.Get(key)
	if err != nil {
		return err
	}
	if string(item.Value) != wanted {
		return fmt.Errorf("found %.80q, wanted %.80q", item.Value, wanted)
	}
	return nil
}

// isMiss returns an error unless the key holds nothing.
func isMiss(client *memcache.Client, key string) error {
	_, err := client.Get(key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil
	}
	return fmt.Errorf("wanted a miss, got error %v", err)
}

func set(client *memcache.Client, key, value string) error {
	return client.Set(&memcache.Item{Key: key, Value: []byte(value)})
}

func checkStore(client *memcache.Client) error {
	if err := set(client, "go-store", "first"); err != nil {
		return err
	}
	return set(client, "go-store", "second")
}

func checkRead(client *memcache.Client) error {
	const value = "a value\r\nof two lines"
	item := &memcache.Item{Key: "go-read", Value: []byte(value), Flags: 4294967295}
	if err := client.Set(item); err != nil {
		return err
	}
	found, err := client.Get("go-read")
	if err != nil {
		return err
	}
	if found.Flags != item.Flags {
		return fmt.Errorf("client flags %d, wanted %d", found.Flags, item.Flags)
	}
	return isValue(client, "go-read", value)
}

func checkMiss(client *memcache.Client) error {
	return isMiss(client, "go-never-stored")
}

func checkDelete(client *memcache.Client) error {
	if err := set(client, "go-delete", "x"); err != nil {
		return err
	}
	if err := client.Delete("go-delete"); err != nil {
		return err
	}
	return isMiss(client, "go-delete")
}

func checkCount(client *memcache.Client) error {
	if err := set(client, "go-count", "41"); err != nil {
		return err
	}
	if n, err := client.Increment("go-count", 1001); err != nil || n != 1042 {
		return fmt.Errorf("increment gave %d, %v; wanted 1042", n, err)
	}
	if n, err := client.Decrement("go-count", 42); err != nil || n != 1000 {
		return fmt.Errorf("decrement gave %d, %v; wanted 1000", n, err)
	}
	return nil
}

// The server counts whole seconds, so an item with a TTL of one second may expire at once. The
// check stores it again until a read finds it.
func checkTTL(client *memcache.Client) error {
	seen := false
	for try := 0; try < 5 && !seen; try++ {
		item := &memcache.Item{Key: "go-ttl", Value: []byte("soon gone"), Expiration: 1}
		if err := client.Set(item); err != nil {
			return err
		}
		seen = isValue(client, "go-ttl", "soon gone") == nil
	}
	if !seen {
		return errors.New("an item of one second was never readable")
	}
	for began := time.Now(); time.Since(began) < expireWithin; time.Sleep(pollInterval) {
		if isMiss(client, "go-ttl") == nil {
			return nil
		}
	}
	return fmt.Errorf("still there %v after its TTL of 1 s was set", expireWithin)
}

func checkCasMatch(client *memcache.Client) error {
	if err := set(client, "go-cas", "old"); err != nil {
		return err
	}
	item, err := client.Get("go-cas")
	if err != nil {
		return err
	}
	item.Value = []byte("new")
	if err := client.CompareAndSwap(item); err != nil {
		return err
	}
	return isValue(client, "go-cas", "new")
}

func checkCasMismatch(client *memcache.Client) error {
	if err := set(client, "go-cas-late", "old"); err != nil {
		return err
	}
	item, err := client.Get("go-cas-late")
	if err != nil {
		return err
	}
	if err := set(client, "go-cas-late", "newer"); err != nil {
		return err
	}
	item.Value = []byte("too late")
	if err := client.CompareAndSwap(item); !errors.Is(err, memcache.ErrCASConflict) {
		return fmt.Errorf("wanted a conflict, got error %v", err)
	}
	return isValue(client, "go-cas-late", "newer")
}

func checkMultiget(client *memcache.Client) error {
	keys := []string{"go-multi-absent"}
	for index := 0; index < multigetCount; index++ {
		key := fmt.Sprintf("go-multi-%d", index)
		if err := set(client, key, "value of "+key); err != nil {
			return err
		}
		keys = append(keys, key)
	}
	found, err := client.GetMulti(keys)
	if err != nil {
		return err
	}
	if len(found) != multigetCount {
		return fmt.Errorf("found %d items, wanted %d", len(found), multigetCount)
	}
	for key, item := range found {
		if string(item.Value) != "value of "+key {
			return fmt.Errorf("%s holds %.80q", key, item.Value)
		}
	}
	return nil
}

func checkBigValue(client *memcache.Client) error {
	value := make([]byte, bigBytes)
	if _, err := rand.Read(value); err != nil {
		return err
	}
	if err := client.Set(&memcache.Item{Key: "go-big", Value: value}); err != nil {
		return err
	}
	item, err := client.Get("go-big")
	if err != nil {
		return err
	}
	found, wanted := sha256.Sum256(item.Value), sha256.Sum256(value)
	if len(item.Value) != bigBytes || !bytes.Equal(found[:], wanted[:]) {
		return fmt.Errorf("%d bytes came back, of another hash", len(item.Value))
	}
	return nil
}

func main() {
	checks := []struct {
		name string
		run  func(*memcache.Client) error
	}{
		{"store", checkStore},
		{"read", checkRead},
		{"miss", checkMiss},
		{"delete", checkDelete},
		{"count", checkCount},
		{"ttl", checkTTL},
		{"cas-match", checkCasMatch},
		{"cas-mismatch", checkCasMismatch},
		{"multiget", checkMultiget},
		{"big-value", checkBigValue},
	}
	client := memcache.New(strings.Split(os.Args[1], ",")[0])
	client.Timeout = 20 * time.Second
	status := 0
	for _, check := range checks {
		if err := check.run(client); err != nil {
			fmt.Printf("FAIL gomemcache.%s %v\n", check.name, err)
			status = 1
		} else {
			fmt.Printf("ok gomemcache.%s\n", check.name)
		}
	}
	os.Exit(status)
}
