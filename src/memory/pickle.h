/* SPDX-License-Identifier: MIT */
/*
 * Python's pickle format, as far as memory snapshots need it: a reader that executes nothing, and a
 * writer.
 *
 * The reader knows dictionaries, lists, tuples, strings, numbers, booleans and None (protocols 2 to
 * 5) and refuses every opcode that could name or call something. It is made for files of hundreds
 * of MB of which little is wanted: the caller gives the words it knows, everything else is passed
 * over while reading, and dictionaries are offered to the caller as they are put into a list, then
 * forgotten.
 *
 * Memory: 8 bytes per memoised object, plus what the caller keeps. Depth, stack and memo are
 * bounded.
 */
#ifndef MP_PICKLE_H
#define MP_PICKLE_H

#include "base/strbuf.h"
#include "memory/source.h"

enum mp_pickle_kind {
    MP_PICKLE_NONE,
    MP_PICKLE_BOOL,
    MP_PICKLE_INT,
    MP_PICKLE_FLOAT,
    MP_PICKLE_WORD, /* a string: index into the caller's words, MP_PICKLE_OTHER_WORD for all others
                     */
    MP_PICKLE_TEXT, /* a string that was kept: index for mp_pickle_text */
    MP_PICKLE_PAIR, /* a tuple of two integers that fit 28 bits */
    MP_PICKLE_DICT,
    MP_PICKLE_LIST,
    MP_PICKLE_OPAQUE, /* anything else, or what was offered and forgotten */
    MP_PICKLE_MARK,   /* internal */
};
#define MP_PICKLE_OTHER_WORD UINT32_MAX
#define MP_PICKLE_MAX_KEYS 12

struct mp_pickle_value {
    enum mp_pickle_kind kind;
    union {
        int64_t integer; /* INT, BOOL; PAIR: high and low 28 bits */
        double real;
        uint64_t ref; /* WORD, TEXT, DICT, LIST */
    } as;
};

/* Of a dictionary: the values under known words. */
struct mp_pickle_dict {
    uint32_t n;
    uint32_t keys[MP_PICKLE_MAX_KEYS];
    struct mp_pickle_value values[MP_PICKLE_MAX_KEYS];
};

/* Of a list: lists inside it, and the run of dictionaries that the caller took. */
struct mp_pickle_list {
    struct mp_pickle_value *lists;
    size_t n_lists, cap_lists;
    int taken_kind; /* what take() said; 0: nothing was taken */
    uint64_t first, count;
};

struct mp_pickle;

struct mp_pickle_reader {
    const char *const *words;
    uint32_t n_words;
    uint32_t text_word; /* the string that follows this key is kept */
    /*
     * A dictionary was put into a list: 0 passes it over, a kind > 0 says it was taken, -1 is out
     * of memory. *index is the caller's number for it; dictionaries of one list must get
     * consecutive numbers of one kind.
     */
    int (*take)(void *context, const struct mp_pickle *pickle, const struct mp_pickle_dict *dict,
                uint64_t *index);
    void *context;
};

/** Reads one pickle. NULL with *err: INPUT names the opcode and its offset. */
struct mp_pickle *mp_pickle_read(const struct mp_pickle_reader *reader, struct mp_source *source,
                                 struct memplan_error *err);
void mp_pickle_free(struct mp_pickle *pickle);

/** What was pickled. */
struct mp_pickle_value mp_pickle_top(const struct mp_pickle *pickle);
/** NULL for other kinds and for what was forgotten. */
const struct mp_pickle_dict *mp_pickle_dict(const struct mp_pickle *pickle,
                                            struct mp_pickle_value value);
const struct mp_pickle_list *mp_pickle_list(const struct mp_pickle *pickle,
                                            struct mp_pickle_value value);
const char *mp_pickle_text(const struct mp_pickle *pickle, struct mp_pickle_value value);
/** The value under a word; kind OPAQUE when there is none. */
struct mp_pickle_value mp_pickle_get(const struct mp_pickle_dict *dict, uint32_t word);

/*
 * Writer, protocol 4. Calls nest as in JSON: inside a dictionary every value follows a string.
 * Strings and, if asked for, containers are written once and referred to afterwards.
 */
struct mp_pickle_writer {
    struct mp_strbuf *out;
    uint32_t n_memo;
    struct mp_pickle_word *table; /* open addressing: strings to memo numbers */
    size_t n_table, cap_table;
    bool failed;
};
void mp_pickle_begin(struct mp_pickle_writer *w, struct mp_strbuf *out);
/** STOP; false when memory was exhausted. */
bool mp_pickle_end(struct mp_pickle_writer *w);
void mp_pickle_begin_dict(struct mp_pickle_writer *w);
void mp_pickle_end_dict(struct mp_pickle_writer *w);
/** The memo number of the list, for mp_pickle_again. */
uint32_t mp_pickle_begin_list(struct mp_pickle_writer *w);
void mp_pickle_end_list(struct mp_pickle_writer *w);
void mp_pickle_again(struct mp_pickle_writer *w, uint32_t memo);
void mp_pickle_string(struct mp_pickle_writer *w, const char *text);
void mp_pickle_int(struct mp_pickle_writer *w, int64_t value);
void mp_pickle_real(struct mp_pickle_writer *w, double value);
void mp_pickle_bool(struct mp_pickle_writer *w, bool value);
void mp_pickle_pair(struct mp_pickle_writer *w, int64_t first, int64_t second);

#endif
