/* A library with the functions of RocksDB's C interface that Kachel uses, over a sorted list in memory.
 *
 * It stands in for RocksDB where that is not installed, and where a test needs a failure at a certain
 * place. A database lives as long as the process: it is there when its path is opened again. It is made anew
 * where its folder was removed.
 *
 * Files in the folder of a database direct it, when it is opened:
 *   fail-write   the number of the write that fails, from 1; all later ones succeed. -1: every sync fails
 *   fail-read    every read of an item that may ask the disk fails, if the file is there
 *   fail-page    the number of the record from which on an iterator fails, from 0 on; 0: none does
 *   fail-open    the database cannot be opened, if the file is there
 * A database that is closed leaves the file `closed` there.
 *
 * Reads that use memory only ("tier 1") do not know a key before a read that may ask the disk has had
 * it, or after it was written: those are what a cache of blocks and a buffer of writes have. Only every
 * other key that was written is in the buffer. Every other time they say so with an error. Otherwise they give
 * an empty value, as RocksDB 7.8 does for a key of a file that is not open. What a database does depends on its
 * folder and on what was done with it, and not on other databases.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { char *bytes; size_t count; } Bytes;
typedef struct { Bytes key, record; int is_there, in_memory; } Entry;
typedef struct Database {
    char *path;
    Entry *entries;
    size_t count, room;
    long writes, fail_write, fail_page;
    unsigned unknown; /* Reads that use memory only and did not know their key. */
    int fail_read;
    struct Database *next;
} Database;
typedef struct { int kind; Bytes key, record; } Change; /* p: put, d: delete, r: delete a range */
typedef struct { Change *changes; size_t count; } Batch;
typedef struct { int tier; } Reading;
typedef struct { Database *database; size_t at; Bytes key, record; int is_valid, is_failed; } Iterator;

static Database *databases;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Bytes copy(const char *bytes, size_t count) {
    Bytes made = { malloc(count + 1), count };
    memcpy(made.bytes, bytes, count);
    made.bytes[count] = 0;
    return made;
}

static int compare(Bytes a, const char *bytes, size_t count) {
    int order = memcmp(a.bytes, bytes, a.count < count ? a.count : count);
    return order ? order : (a.count > count) - (a.count < count);
}

/* The place of the first entry that is not before the key. */
static size_t place(const Database *database, const char *key, size_t count) {
    size_t from = 0, to = database->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (compare(database->entries[middle].key, key, count) < 0) from = middle + 1;
        else to = middle;
    }
    return from;
}

static Entry *find(const Database *database, const char *key, size_t count) {
    size_t at = place(database, key, count);
    int is_it = at < database->count && compare(database->entries[at].key, key, count) == 0;
    return is_it ? &database->entries[at] : NULL;
}

static void set(Database *database, Bytes key, Bytes record, int is_there) {
    Entry *entry = find(database, key.bytes, key.count);
    if (!entry) {
        if (!is_there) return;
        size_t at = place(database, key.bytes, key.count);
        if (database->count == database->room) {
            database->room = database->room ? 2 * database->room : 64;
            database->entries = realloc(database->entries, database->room * sizeof(Entry));
        }
        entry = &database->entries[at];
        memmove(entry + 1, entry, (database->count++ - at) * sizeof(Entry));
        *entry = (Entry){ .key = copy(key.bytes, key.count) };
    }
    free(entry->record.bytes);
    entry->record = is_there ? copy(record.bytes, record.count) : (Bytes){ 0 };
    entry->is_there = is_there;
    entry->in_memory = database->writes % 2;
}

/* The number in a file of a database's folder; 0 if there is none. */
static long directed(const char *path, const char *name) {
    char whole[4096];
    long number = 0;
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    FILE *file = fopen(whole, "r");
    if (!file) return 0;
    if (fscanf(file, "%ld", &number) != 1) number = 1;
    fclose(file);
    return number;
}

void rocksdb_free(void *memory) { free(memory); }

/* Options, a cache, a filter: objects that nothing here looks into. */
#define OBJECT(create, destroy) \
    void *create(void) { return calloc(1, 64); } \
    void destroy(void *object) { free(object); }
OBJECT(rocksdb_options_create, rocksdb_options_destroy) /* Its first byte: whether a database is made. */
OBJECT(rocksdb_block_based_options_create, rocksdb_block_based_options_destroy)
OBJECT(rocksdb_writeoptions_create, rocksdb_writeoptions_destroy)
OBJECT(rocksdb_readoptions_create, rocksdb_readoptions_destroy)
void *rocksdb_cache_create_lru(size_t bytes) { (void)bytes; return calloc(1, 64); }
void rocksdb_cache_destroy(void *cache) { free(cache); }
void *rocksdb_filterpolicy_create_bloom(double bits) { (void)bits; return calloc(1, 64); }
void rocksdb_options_set_create_if_missing(unsigned char *o, unsigned char on) { *o = on; }
void rocksdb_options_set_write_buffer_size(void *o, size_t bytes) { (void)o, (void)bytes; }
void rocksdb_options_set_max_open_files(void *o, int count) { (void)o, (void)count; }
void rocksdb_options_set_keep_log_file_num(void *o, size_t count) { (void)o, (void)count; }
void rocksdb_options_set_block_based_table_factory(void *o, void *table) { (void)o, (void)table; }
void rocksdb_options_set_compaction_filter(void *o, void *filter) { (void)o, (void)filter; }
void rocksdb_block_based_options_set_block_cache(void *o, void *cache) { (void)o, (void)cache; }
void rocksdb_block_based_options_set_filter_policy(void *o, void *policy) { (void)o, free(policy); }
void rocksdb_readoptions_set_read_tier(Reading *reading, int tier) { reading->tier = tier; }
void rocksdb_readoptions_set_fill_cache(void *o, unsigned char on) { (void)o, (void)on; }
void rocksdb_writeoptions_set_sync(void *o, unsigned char on) { (void)o, (void)on; }
void rocksdb_get_options_from_string(void *before, const char *text, void *after, char **error) {
    (void)before, (void)after;
    if (strstr(text, "no_such_option")) *error = strdup("Invalid argument: no_such_option");
}

typedef struct { void *state; void (*end)(void *); } Filter;
void *rocksdb_compactionfilter_create(void *state, void (*end)(void *), void *drops, void *name) {
    (void)drops, (void)name;
    Filter *filter = malloc(sizeof *filter);
    *filter = (Filter){ state, end };
    return filter;
}
void rocksdb_compactionfilter_destroy(Filter *filter) {
    filter->end(filter->state);
    free(filter);
}

Database *rocksdb_open(const unsigned char *options, const char *path, char **error) {
    char current[4096];
    int is_made = 0;
    snprintf(current, sizeof current, "%s/CURRENT", path);
    if (directed(path, "fail-open")) {
        *error = strdup("Corruption: as the test wants it");
        return NULL;
    }
    if (access(current, F_OK)) {
        if (!*options) {
            *error = strdup("Invalid argument: does not exist (create_if_missing is false)");
            return NULL;
        }
        mkdir(path, 0700);
        FILE *file = fopen(current, "w");
        if (file) fclose(file);
        is_made = 1;
    }
    pthread_mutex_lock(&lock);
    Database *found = databases;
    while (found && strcmp(found->path, path)) found = found->next;
    if (!found) {
        found = calloc(1, sizeof *found);
        *found = (Database){ .path = strdup(path), .next = databases };
        databases = found;
    }
    if (is_made) {
        for (size_t i = 0; i < found->count; i++) {
            free(found->entries[i].key.bytes);
            free(found->entries[i].record.bytes);
        }
        found->count = 0;
    }
    found->writes = found->unknown = 0;
    found->fail_write = directed(path, "fail-write");
    found->fail_read = directed(path, "fail-read") != 0;
    found->fail_page = directed(path, "fail-page");
    pthread_mutex_unlock(&lock);
    return found;
}
void rocksdb_close(Database *database) {
    char closed[4096];
    snprintf(closed, sizeof closed, "%s/closed", database->path);
    FILE *file = fopen(closed, "w");
    if (file) fclose(file);
}

Batch *rocksdb_writebatch_create(void) { return calloc(1, sizeof(Batch)); }
static void add(Batch *batch, int kind, Bytes key, Bytes record) {
    batch->changes = realloc(batch->changes, (batch->count + 1) * sizeof(Change));
    batch->changes[batch->count++] = (Change){ kind, key, record };
}
static Bytes join(int count, const char *const *pieces, const size_t *bytes) {
    Bytes all = copy("", 0);
    for (int i = 0; i < count; i++) {
        all.bytes = realloc(all.bytes, all.count + bytes[i] + 1);
        memcpy(all.bytes + all.count, pieces[i], bytes[i]);
        all.count += bytes[i];
    }
    return all;
}
void rocksdb_writebatch_putv(Batch *batch, int keys, const char *const *key, const size_t *key_bytes,
                             int records, const char *const *record, const size_t *record_bytes) {
    add(batch, 'p', join(keys, key, key_bytes), join(records, record, record_bytes));
}
void rocksdb_writebatch_delete(Batch *batch, const char *key, size_t count) {
    add(batch, 'd', copy(key, count), copy("", 0));
}
void rocksdb_writebatch_delete_range(Batch *batch, const char *from, size_t from_bytes, const char *to,
                                     size_t to_bytes) {
    add(batch, 'r', copy(from, from_bytes), copy(to, to_bytes));
}
void rocksdb_writebatch_destroy(Batch *batch) {
    for (size_t i = 0; i < batch->count; i++) {
        free(batch->changes[i].key.bytes);
        free(batch->changes[i].record.bytes);
    }
    free(batch->changes);
    free(batch);
}

void rocksdb_write(Database *database, void *options, Batch *batch, char **error) {
    (void)options;
    pthread_mutex_lock(&lock);
    if (++database->writes == database->fail_write) {
        *error = strdup("IO error: as the test wants it");
    } else {
        for (size_t i = 0; i < batch->count; i++) {
            Change *change = &batch->changes[i];
            if (change->kind != 'r') {
                set(database, change->key, change->record, change->kind == 'p');
                continue;
            }
            size_t at = place(database, change->key.bytes, change->key.count);
            for (; at < database->count; at++) {
                Entry *entry = &database->entries[at];
                if (compare(entry->key, change->record.bytes, change->record.count) >= 0) break;
                entry->is_there = 0;
            }
        }
    }
    pthread_mutex_unlock(&lock);
}
void rocksdb_flush_wal(Database *database, unsigned char sync, char **error) {
    (void)sync;
    if (database->fail_write < 0) *error = strdup("IO error: as the test wants it");
}

Bytes *rocksdb_get_pinned(Database *database, Reading *reading, const char *key, size_t count,
                          char **error) {
    Bytes *found = NULL;
    pthread_mutex_lock(&lock);
    Entry *entry = find(database, key, count);
    if (reading->tier == 1) {
        if (entry && !entry->in_memory && database->unknown++ % 2) {
            pthread_mutex_unlock(&lock);
            found = malloc(sizeof *found);
            *found = copy("", 0);
            return found;
        }
        if (entry && !entry->in_memory) *error = strdup("Result incomplete: not in memory");
    } else if (database->fail_read && count) {
        *error = strdup("IO error: as the test wants it");
    } else if (entry) {
        entry->in_memory = 1;
    }
    if (entry && entry->is_there && !*error) {
        found = malloc(sizeof *found);
        *found = copy(entry->record.bytes, entry->record.count);
    }
    pthread_mutex_unlock(&lock);
    return found;
}
const char *rocksdb_pinnableslice_value(Bytes *slice, size_t *count) {
    *count = slice->count;
    return slice->bytes;
}
void rocksdb_pinnableslice_destroy(Bytes *slice) {
    free(slice->bytes);
    free(slice);
}
void rocksdb_multi_get(Database *database, Reading *reading, size_t count, const char *const *keys,
                       const size_t *key_bytes, char **records, size_t *record_bytes, char **errors) {
    for (size_t i = 0; i < count; i++) {
        records[i] = errors[i] = NULL;
        Bytes *found = rocksdb_get_pinned(database, reading, keys[i], key_bytes[i], &errors[i]);
        if (!found) continue;
        records[i] = found->bytes;
        record_bytes[i] = found->count;
        free(found);
    }
}

Iterator *rocksdb_create_iterator(Database *database, Reading *reading) {
    (void)reading;
    Iterator *iterator = calloc(1, sizeof *iterator);
    iterator->database = database;
    return iterator;
}
/* Goes to the first entry from `at` on that is there, and copies it. */
static void settle(Iterator *iterator, size_t at) {
    free(iterator->key.bytes);
    free(iterator->record.bytes);
    iterator->key = iterator->record = (Bytes){ 0 };
    Database *database = iterator->database;
    iterator->is_failed = database->fail_page > 0 && at >= (size_t)database->fail_page;
    if (iterator->is_failed) at = database->count;
    while (at < database->count && !database->entries[at].is_there) at++;
    iterator->is_valid = at < database->count;
    if (!iterator->is_valid) return;
    Entry *entry = &database->entries[at];
    iterator->key = copy(entry->key.bytes, entry->key.count);
    iterator->record = copy(entry->record.bytes, entry->record.count);
}
void rocksdb_iter_seek(Iterator *iterator, const char *key, size_t count) {
    pthread_mutex_lock(&lock);
    settle(iterator, place(iterator->database, key, count));
    pthread_mutex_unlock(&lock);
}
void rocksdb_iter_next(Iterator *iterator) {
    pthread_mutex_lock(&lock);
    size_t at = place(iterator->database, iterator->key.bytes, iterator->key.count);
    settle(iterator, at + 1);
    pthread_mutex_unlock(&lock);
}
unsigned char rocksdb_iter_valid(Iterator *iterator) { return iterator->is_valid; }
const char *rocksdb_iter_key(Iterator *iterator, size_t *count) {
    *count = iterator->key.count;
    return iterator->key.bytes;
}
const char *rocksdb_iter_value(Iterator *iterator, size_t *count) {
    *count = iterator->record.count;
    return iterator->record.bytes;
}
void rocksdb_iter_get_error(Iterator *iterator, char **error) {
    if (iterator->is_failed) *error = strdup("IO error: as the test wants it");
}
void rocksdb_iter_destroy(Iterator *iterator) {
    free(iterator->key.bytes);
    free(iterator->record.bytes);
    free(iterator);
}

/* The items are all of the numbers but two: a cache of 1,000 bytes, and no stop of writes. */
int rocksdb_property_int(Database *database, const char *name, uint64_t *number) {
    pthread_mutex_lock(&lock);
    *number = 0;
    for (size_t i = 0; i < database->count; i++) *number += database->entries[i].is_there != 0;
    if (strstr(name, "block-cache-usage")) *number = 1000;
    if (strstr(name, "is-write-stopped")) *number = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}
char *rocksdb_property_value(Database *database, const char *name) {
    (void)database;
    return strstr(name, "level0") ? strdup("2") : NULL;
}
