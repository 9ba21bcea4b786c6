/* SPDX-License-Identifier: MIT */
/*
 * Snapshots: files that Python's pickler wrote in protocols 2 to 5 (tests/data/snapshots, made by
 * make.py there), the JSON form, hostile pickles, recordings that start in the middle, and what the
 * writer writes.
 */
#include <check.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/file.h"
#include "memory/pickle.h"
#include "memory/replay.h"
#include "memory/snapshot.h"
#include "suites.h"

static void read_file(const char *path, struct mp_history *h)
{
    struct memplan_error err = {0};
    *h = (struct mp_history){0};
    ck_assert_msg(mp_history_read(h, path, -1, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}

static enum memplan_status parse(const void *bytes, size_t n, int device, struct mp_history *h,
                                 struct memplan_error *err)
{
    *h = (struct mp_history){0};
    return mp_history_parse(h, "x.pickle", bytes, n, device, err);
}

static struct mp_replay_result replay_as_recorded(const struct mp_history *h)
{
    struct mp_replay_options options = {.as_recorded = true, .limit_bytes = h->limit_bytes};
    struct mp_replay_result r;
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_allocator_conf_parse(h->conf, 0, &options.conf, &err), MEMPLAN_STATUS_OK);
    ck_assert_msg(mp_replay_run(h, &options, &r, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    return r;
}

/* ---- writing a trace as a snapshot ---- */

struct recorder {
    struct mp_snapshot_entry *entries;
    size_t n, cap;
    const struct mp_snapshot_frame *frame;
};

static void record(void *context, const struct mp_allocator_note *note)
{
    struct recorder *r = context;
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 1024;
        r->entries = realloc(r->entries, r->cap * sizeof(*r->entries));
        ck_assert_ptr_nonnull(r->entries);
    }
    r->entries[r->n] = (struct mp_snapshot_entry){.action = note->action,
                                                  .address = note->address,
                                                  .bytes = note->bytes,
                                                  .stream = note->stream,
                                                  .time_us = r->n};
    if (note->action == MP_ALLOCATOR_ALLOC)
        r->entries[r->n].frame = r->frame;
    r->n++;
}

static const struct mp_snapshot_frame outer = {"train", "train.py", 7, NULL};
static const struct mp_snapshot_frame inner = {"forward", "model.py", 300, &outer};

static const struct mp_snapshot_frame *frame_of(void *context, uint32_t client)
{
    (void)context;
    return client % 2 ? &inner : NULL;
}

/* Play the first n entries of a recorded run and write what happened, entries before `drop` left
 * out. */
static void write_run(const char *id, const char *conf, size_t n, size_t drop,
                      struct mp_strbuf *out)
{
    char path[160];
    struct mp_history h;
    struct memplan_error err = {0};
    snprintf(path, sizeof(path), "tests/data/traces/%s.txt.gz", id);
    read_file(path, &h);
    struct mp_allocator_options options = {.total_bytes = UINT64_C(150109880320)};
    ck_assert_int_eq(mp_allocator_conf_parse(conf, 0, &options.conf, &err), MEMPLAN_STATUS_OK);
    struct mp_allocator *a = mp_allocator_new(&options, &err);
    struct mp_block **blocks = calloc(h.n_ids, sizeof(struct mp_block *));
    struct recorder r = {.frame = &inner};
    mp_allocator_observe(a, record, &r);
    for (size_t i = 0; i < MP_MIN(n, h.n_entries); i++) {
        const struct mp_history_entry *e = &h.entries[i];
        if (e->action == MP_ALLOCATOR_ALLOC)
            blocks[e->id] = mp_allocator_malloc(a, e->bytes, e->stream, e->id);
        else if (e->action == MP_ALLOCATOR_FREE_COMPLETED)
            mp_allocator_release(a, blocks[e->id]);
    }
    ck_assert_uint_gt(r.n, drop);
    const struct mp_snapshot snapshot = {
        .entries = r.entries + drop,
        .n_entries = r.n - drop,
        .final = a,
        .frame_of = frame_of,
        .conf = conf,
    };
    ck_assert_int_eq(mp_snapshot_write(&snapshot, out, &err), MEMPLAN_STATUS_OK);
    mp_allocator_free(a);
    free(blocks);
    free(r.entries);
    mp_history_release(&h);
}

START_TEST(what_is_written_reads_back_and_replays_exactly)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_history h;
    struct memplan_error err = {0};
    write_run("m-013-gpt2-124m", "max_split_size_mb:64", SIZE_MAX, 0, &out);
    ck_assert_msg(parse(out.data, out.len, -1, &h, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_str_eq(h.conf, "max_split_size_mb:64");
    ck_assert_uint_eq(h.n_allocs, 3347);
    ck_assert_uint_eq(h.n_seed_segments, 0);
    const struct mp_replay_result r = replay_as_recorded(&h);
    ck_assert_uint_eq(r.differences.addresses, 0);
    ck_assert_uint_eq(r.differences.segments, 0);
    mp_history_release(&h);
    mp_strbuf_release(&out);
}
END_TEST

static const struct {
    const char *id, *conf;
    size_t drop;
} late[] = {
    {"m-013-gpt2-124m", "", 1},
    {"m-013-gpt2-124m", "", 1000},
    {"m-013-gpt2-124m", "", 5000},
    {"m-001-gpt2-124m", "max_split_size_mb:128", 3000},
    {"m-007-gpt2-124m", "expandable_segments:True", 4000},
    {"m-119-gpt2-124m", "roundup_power2_divisions:8", 6000},
};

/* The end state wound back through the entries is the state that the recording began in. */
START_TEST(a_recording_that_starts_late_takes_its_state_from_the_segments)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_history h;
    struct memplan_error err = {0};
    write_run(late[_i].id, late[_i].conf, SIZE_MAX, late[_i].drop, &out);
    ck_assert_msg(parse(out.data, out.len, -1, &h, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_uint_gt(h.n_seed_segments, 0);
    ck_assert_uint_eq(h.n_unknown_frees, 0);
    const struct mp_replay_result r = replay_as_recorded(&h);
    ck_assert_msg(r.differences.addresses == 0 && r.differences.segments == 0,
                  "%zu addresses, %zu segments differ", r.differences.addresses,
                  r.differences.segments);
    mp_history_release(&h);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(python_reads_what_is_written)
{
    if (system("command -v python3 >/dev/null 2>&1") != 0)
        return; /* nothing to compare with */
    struct mp_strbuf out = MP_STRBUF_INIT, command = MP_STRBUF_INIT;
    char path[] = "/tmp/memplan-snapshot-XXXXXX";
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    write_run("m-013-gpt2-124m", "expandable_segments:True", 2000, 0, &out);
    ck_assert_int_eq(mp_file_write(path, out.data, out.len, NULL), MEMPLAN_STATUS_OK);
    mp_strbuf_addf(
        &command,
        "python3 -c \"import pickle\n"
        "s = pickle.load(open('%s', 'rb'))\n"
        "assert set(s) == {'segments', 'device_traces', 'allocator_settings', "
        "'external_annotations'}, set(s)\n"
        "t = s['device_traces'][0]\n"
        "a = [e for e in t if e['action'] == 'alloc']\n"
        "assert a[0]['frames'] == [{'name': 'forward', 'filename': 'model.py', 'line': 300}, "
        "{'name': 'train', 'filename': 'train.py', 'line': 7}]\n"
        "assert 'frames' not in [e for e in t if e['action'] == 'segment_map'][0]\n"
        "assert a[0]['addr'] > 2**31 and a[0]['size'] > 0 and t[3]['time_us'] == 3\n"
        "for g in s['segments']:\n"
        "    b = g['blocks']\n"
        "    assert sum(x['size'] for x in b) == g['total_size']\n"
        "    assert b[0]['address'] == g['address'] and g['is_expandable'] is True\n"
        "    assert g['segment_pool_id'] == (0, 0)\n"
        "live = sum(x['state'] == 'active_allocated' for g in s['segments'] for x in g['blocks'])\n"
        "freed = sum(e['action'] == 'free_completed' for e in t)\n"
        "assert live == len(a) - freed, (live, len(a), freed)\n"
        "assert s['allocator_settings']['expandable_segments'] is True\n\"",
        path);
    const int status = system(command.data);
    unlink(path);
    ck_assert_int_eq(status, 0);
    mp_strbuf_release(&command);
    mp_strbuf_release(&out);
}
END_TEST

/* ---- reading what Python wrote ---- */

static const char *const files[] = {
    "tests/data/snapshots/protocol2.pickle", "tests/data/snapshots/protocol3.pickle",
    "tests/data/snapshots/protocol4.pickle", "tests/data/snapshots/protocol5.pickle.gz",
    "tests/data/snapshots/snapshot.json",
};

START_TEST(every_form_of_a_snapshot_gives_the_same_history)
{
    struct mp_history h;
    read_file(files[_i], &h);
    ck_assert_int_eq(h.device, 1);
    ck_assert_int_eq(h.n_devices, 2);
    ck_assert_str_eq(h.conf, "max_split_size_mb:64");
    ck_assert_uint_eq(h.n_entries, 400);
    ck_assert_uint_eq(h.n_streams, 2); /* one of them only has a segment in a graph's pool */
    const struct mp_replay_result r = replay_as_recorded(&h);
    ck_assert_uint_eq(r.differences.addresses, 0);
    ck_assert_uint_eq(r.differences.segments, 0);
    mp_history_release(&h);
}
END_TEST

START_TEST(a_device_can_be_chosen)
{
    struct mp_history h = {0};
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_history_read(&h, files[2], 2, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_str_eq(err.text, "tests/data/snapshots/protocol4.pickle: no device 2; it has 2");
    ck_assert_int_eq(mp_history_read(&h, files[2], 1, &err), MEMPLAN_STATUS_OK);
    mp_history_release(&h);
}
END_TEST

/* ---- hostile and broken pickles ---- */

#define BYTES(text) text, sizeof(text) - 1

static const struct {
    const char *bytes;
    size_t n;
    const char *error;
} refused[] = {
    {BYTES("\x80\x02"
           "cos\nsystem\n(X\x02\0\0\0idtR."),
     "GLOBAL (0x63) is refused"},
    {BYTES("\x80\x04\x8c\x02os\x8c\x06system\x93."), "STACK_GLOBAL (0x93) is refused"},
    {BYTES("\x80\x04}R."), "REDUCE (0x52) is refused"},
    {BYTES("\x80\x04}b."), "BUILD (0x62) is refused"},
    {BYTES("\x80\x04})\x81."), "NEWOBJ (0x81) is refused"},
    {BYTES("\x80\x04\xff."), "unknown opcode (0xff) is refused"},
    {BYTES("\x80\x01}."), "protocol is not 2 to 5"},
    {BYTES("\x80\x04}"), "byte 3: the file ends before the pickle does"},
    {BYTES("\x80\x04\x8c\xffxx"), "the file ends inside it"},
    {BYTES("\x80\x04u."), "no mark"},
    {BYTES("\x80\x04(u."), "keys and values do not pair"},
    {BYTES("\x80\x04}(K\x01u."), "keys and values do not pair"},
    {BYTES("\x80\x04K\x01(K\x01"
           "e."),
     "needs a list"},
    {BYTES("\x80\x04]K\x01K\x02s."), "needs a dictionary"},
    {BYTES("\x80\x04h\x07."), "refers to nothing"},
    {BYTES("\x80\x04\x94."), "nothing to memoise"},
    {BYTES("\x80\x02}r\xff\xff\xff\xff."), "memo numbers out of order"},
    {BYTES("\x80\x04."), "one value should be left"},
    {BYTES("\x80\x04}}."), "one value should be left"},
    {BYTES("\x80\x04}."), "a pickle, but no memory snapshot"},
    {BYTES("\x80\x04]\x94h\0a."), "a container inside itself"},
};

START_TEST(what_is_no_snapshot_is_refused_by_name)
{
    struct mp_history h;
    struct memplan_error err = {0};
    ck_assert_int_eq(parse(refused[_i].bytes, refused[_i].n, -1, &h, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, refused[_i].error) != NULL, "%s", err.text);
}
END_TEST

/* ---- JSON ---- */

static const struct {
    const char *text;
    const char *error; /* NULL: read */
} json[] = {
    {"{\"segments\": [], \"device_traces\": [[{\"action\": \"annotate\", \"size\": \"x\"}]]}", NULL}, /* what later releases add */
    {"{\"segments\": null, \"device_traces\": [[{\"action\": \"alloc\", \"addr\": 512, \"size\": 512, \"stream\": null}]]}", NULL},
    {"{\"segments\": {}}", ":1:14: segments is not a list"},
    {"{\"segments\": [3]}", ":1:15: a segment is not an object"},
    {"{\"segments\": [{\"address\": \"0x7f\"}]}", ":1:27: address is not a whole number from 0"},
    {"{\"segments\": [{\"total_size\": 1.5}]}", ":1:30: total_size is not a whole number from 0"},
    {"{\"segments\": [{\"is_expandable\": 1}]}", ":1:33: is_expandable is not true or false"},
    {"{\"segments\": [{\"segment_pool_id\": [1]}]}", ":1:35: segment_pool_id is not a pair of numbers"},
    {"{\"segments\": [{\"blocks\": {}}]}", ":1:26: blocks is not a list"},
    {"{\"segments\": [{\"blocks\": [[]]}]}", ":1:27: a block is not an object"},
    {"{\"segments\": [{\"blocks\": [{\"state\": 1}]}]}", ":1:37: state is not a string"},
    {"{\"device_traces\": {}}", ":1:19: device_traces is not a list"},
    {"{\"device_traces\": [{}]}", ":1:20: an item of device_traces is not a list of entries"},
    {"{\"device_traces\": [[7]]}", ":1:21: an entry of device_traces is not an object"},
    {"{\"device_traces\": [[{\"action\": \"alloc\", \"size\": -1}]]}", ":1:49: size is not a whole number from 0"},
    {"{\"device_traces\": [], \"allocator_settings\": []}", ":1:45: allocator_settings is not an object"},
    {"{\"device_traces\": [],}", ":1:22: expected a key in double quotes"},
    {"{\"device_traces\": []} x", "expected nothing more after the value"},
};

START_TEST(json_of_the_wrong_kind_is_refused_with_its_place)
{
    struct mp_history h;
    struct memplan_error err = {0};
    const enum memplan_status status = parse(json[_i].text, strlen(json[_i].text), -1, &h, &err);
    if (json[_i].error == NULL) {
        ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s", err.text);
        mp_history_release(&h);
        return;
    }
    ck_assert_int_eq(status, MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, json[_i].error) != NULL, "%s", err.text);
}
END_TEST

START_TEST(depth_is_bounded)
{
    struct mp_strbuf deep = MP_STRBUF_INIT;
    struct mp_history h;
    struct memplan_error err = {0};
    mp_strbuf_addstr(&deep, "\x80\x04");
    for (int i = 0; i < 1000; i++)
        mp_strbuf_addstr(&deep, "](");
    ck_assert_int_eq(parse(deep.data, deep.len, -1, &h, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "nested too deeply"));
    mp_strbuf_reset(&deep);
    mp_strbuf_addstr(&deep, "\x80\x04");
    mp_strbuf_pad(&deep, ']', 1000);
    mp_strbuf_pad(&deep, 'a', 999);
    mp_strbuf_addch(&deep, '.');
    ck_assert_int_eq(parse(deep.data, deep.len, -1, &h, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "nested too deeply"));
    mp_strbuf_release(&deep);
}
END_TEST

/* A cut or damaged file is an error or another history, never a crash. */
START_TEST(every_prefix_and_every_damaged_byte_is_survived)
{
    struct mp_strbuf whole = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_file_read(files[_i], 0, &whole, &err), MEMPLAN_STATUS_OK);
    char *copy = malloc(whole.len);
    ck_assert_ptr_nonnull(copy);
    const size_t step = whole.len / 400 + 1;
    for (size_t i = 0; i < whole.len; i += step) {
        struct mp_history h;
        memcpy(copy, whole.data, whole.len);
        ck_assert_int_ne(parse(copy, i, -1, &h, &err), MEMPLAN_STATUS_OK);
        copy[i] = (char)(copy[i] ^ (1 << (i % 8)));
        if (parse(copy, whole.len, -1, &h, &err) == MEMPLAN_STATUS_OK)
            mp_history_release(&h);
    }
    free(copy);
    mp_strbuf_release(&whole);
}
END_TEST

Suite *suite_snapshot(void)
{
    Suite *suite = suite_create("snapshot");
    TCase *tc = tcase_create("snapshot");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, what_is_written_reads_back_and_replays_exactly);
    tcase_add_loop_test(tc, a_recording_that_starts_late_takes_its_state_from_the_segments, 0,
                        (int)MP_ARRAY_LEN(late));
    tcase_add_test(tc, python_reads_what_is_written);
    tcase_add_loop_test(tc, every_form_of_a_snapshot_gives_the_same_history, 0,
                        (int)MP_ARRAY_LEN(files));
    tcase_add_test(tc, a_device_can_be_chosen);
    tcase_add_loop_test(tc, what_is_no_snapshot_is_refused_by_name, 0, (int)MP_ARRAY_LEN(refused));
    tcase_add_loop_test(tc, json_of_the_wrong_kind_is_refused_with_its_place, 0, (int)MP_ARRAY_LEN(json));
    tcase_add_test(tc, depth_is_bounded);
    tcase_add_loop_test(tc, every_prefix_and_every_damaged_byte_is_survived, 0, 3);
    suite_add_tcase(suite, tc);
    return suite;
}
