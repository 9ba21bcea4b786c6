/* SPDX-License-Identifier: MIT */
/*
 * Attention masks as transformers.masking_utils makes them: mostly none at all, but never without temporaries.
 *
 * Without a mask from the user, causal models look for packed sequences in the position ids. With one, sdpa tests whether it is all
 * ones; eager always builds a (batch, 1, seq, seq) mask and makes it additive.
 */
#include "arch/arch.h"

static struct mp_tensor *empty1(struct mp_runtime *rt, int64_t n, enum mp_dtype dtype) { return mp_empty(rt, MP_SHAPE(n), dtype); }

/* find_packed_sequence_indices(position_ids), (batch, seq) */
static void look_for_packed_sequences(struct mp_runtime *rt, int64_t batch, int64_t seq)
{
    struct mp_tensor *first_dummy = NULL, *difference = NULL, *packed = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &first_dummy, mp_empty(rt, MP_SHAPE(batch, 1), MP_I64));
    struct mp_tensor *joined = mp_empty(rt, MP_SHAPE(batch, seq + 1), MP_I64);
    mp_let(&f, &difference, mp_empty(rt, MP_SHAPE(batch, seq), MP_I64));
    mp_discard(rt, joined);
    struct mp_tensor *jumps = mp_empty(rt, MP_SHAPE(batch, seq), MP_BOOL);
    mp_let(&f, &packed, mp_empty(rt, MP_SHAPE(batch, seq), MP_I64));
    struct mp_tensor *cast = mp_empty(rt, MP_SHAPE(batch, seq), MP_I64); /* cumsum of booleans counts in int64 */
    if (batch == 1)
        mp_scratch(rt, mp_scan_temp(seq, MP_SCAN_TILE));
    mp_discard(rt, cast);
    mp_discard(rt, jumps);
    mp_driver_event(rt, MP_DRIVER_HOST_PAGE, 0);
    struct mp_tensor *equal = empty1(rt, batch, MP_BOOL);
    struct mp_tensor *all = mp_empty(rt, MP_SCALAR, MP_BOOL);
    mp_discard(rt, equal);
    mp_discard(rt, all);
    mp_leave(&f, NULL);
}

/* (mask == 1).all() on the device: a count in int64, with the reduction's scratch */
static void test_all_ones(struct mp_runtime *rt, int64_t n)
{
    struct mp_tensor *count = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *wide = empty1(rt, n, MP_I64);
    mp_reduce_take_scratch(rt, wide, 1u);
    mp_discard(rt, wide);
    mp_driver_event(rt, MP_DRIVER_HOST_PAGE, 0);
    struct mp_tensor *equal = mp_empty(rt, MP_SCALAR, MP_BOOL);
    mp_discard(rt, count);
    mp_discard(rt, equal);
}

enum mask_function { CAUSAL, SLIDING, BIDIRECTIONAL };

static struct mp_tensor *run_mask_function(struct mp_runtime *rt, enum mask_function function, int64_t seq)
{
    if (function == BIDIRECTIONAL)
        return empty1(rt, seq, MP_BOOL); /* query index >= 0 */
    if (function == CAUSAL)
        return mp_empty(rt, MP_SHAPE(seq, seq), MP_BOOL);
    struct mp_tensor *bound = empty1(rt, seq, MP_I64);
    struct mp_tensor *inside = mp_empty(rt, MP_SHAPE(seq, seq), MP_BOOL);
    mp_discard(rt, bound);
    return inside;
}

/* and_masks(): starts from a scalar true and conjoins one function after another */
static struct mp_tensor *conjunction(struct mp_runtime *rt, const enum mask_function *functions, int n, int64_t seq)
{
    struct mp_tensor *result = mp_empty(rt, MP_SCALAR, MP_BOOL);
    for (int i = 0; i < n; i++) {
        struct mp_tensor *part = run_mask_function(rt, functions[i], seq);
        const struct mp_shape shape = functions[i] == BIDIRECTIONAL ? MP_SHAPE(seq) : MP_SHAPE(seq, seq);
        struct mp_tensor *next = mp_empty(rt, shape, MP_BOOL);
        mp_discard(rt, part);
        mp_discard(rt, result);
        result = next;
    }
    return result;
}

/*
 * padding_mask[batch_idx, kv_idx]: both indices are spread over (batch, seq) and copied to one layout, unless they have it already,
 * as the columns of a single row do (ATen/native/TensorAdvancedIndexing.cpp, AdvancedIndex).
 */
static struct mp_tensor *with_padding(struct mp_runtime *rt, struct mp_tensor *mask, int64_t batch, int64_t seq)
{
    struct mp_tensor *rows = seq > 1 ? mp_empty(rt, MP_SHAPE(batch, seq), MP_I64) : NULL;
    struct mp_tensor *columns = batch > 1 ? mp_empty(rt, MP_SHAPE(batch, seq), MP_I64) : NULL;
    struct mp_tensor *padding = mp_empty(rt, MP_SHAPE(batch, seq), MP_BOOL);
    mp_discard(rt, columns);
    mp_discard(rt, rows);
    struct mp_tensor *joint = mp_empty(rt, MP_SHAPE(batch, seq, seq), MP_BOOL);
    mp_discard(rt, padding);
    mp_discard(rt, mask);
    return joint;
}

/*
 * The function of a sliding window is itself a conjunction; with a padding mask it is conjoined once more, from a true of its own.
 */
static struct mp_tensor *windowed_mask(struct mp_runtime *rt, int64_t seq, bool padding)
{
    static const enum mask_function window[] = {SLIDING, CAUSAL};
    struct mp_tensor *outer = padding ? mp_empty(rt, MP_SCALAR, MP_BOOL) : NULL;
    struct mp_tensor *inner = conjunction(rt, window, 2, seq);
    if (!padding)
        return inner;
    struct mp_tensor *joint = mp_empty(rt, MP_SHAPE(seq, seq), MP_BOOL);
    mp_discard(rt, inner);
    mp_discard(rt, outer);
    return joint;
}

/* sdpa_mask(): index vectors, the mask functions, the conjunction with the padding mask; (batch, 1, seq, seq) */
static struct mp_tensor *bool_mask(struct mp_runtime *rt, int64_t batch, int64_t seq, struct mp_tensor *given, int64_t sliding, bool bidirectional)
{
    const bool padding = given != NULL;
    static const enum mask_function causal[] = {CAUSAL}, both[] = {BIDIRECTIONAL};
    struct mp_tensor *batches = NULL, *heads = NULL, *queries = NULL, *keys = NULL, *range;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &batches, empty1(rt, batch, MP_I64));
    mp_let(&f, &heads, empty1(rt, 1, MP_I64));
    range = empty1(rt, seq, MP_I64);
    mp_let(&f, &queries, empty1(rt, seq, MP_I64));
    mp_discard(rt, range);
    range = empty1(rt, seq, MP_I64);
    mp_let(&f, &keys, empty1(rt, seq, MP_I64));
    mp_discard(rt, range);
    struct mp_tensor *mask = bidirectional ? conjunction(rt, both, 1, seq)
                             : sliding     ? windowed_mask(rt, seq, padding)
                             : padding     ? conjunction(rt, causal, 1, seq)
                                           : run_mask_function(rt, CAUSAL, seq);
    if (padding)
        mask = with_padding(rt, mask, batch, seq);
    const int64_t stride[MP_MAX_DIMS] = {padding ? seq * seq : 0, 0, seq, 1};
    struct mp_tensor *view = mp_alias(rt, mask, MP_SHAPE(batch, 1, seq, seq), stride, NULL);
    mp_record(rt, "attention_mask", MP_TENSORS(given), MP_TENSORS(view),
              MP_ATTRIBUTES(mp_boolean("causal", !bidirectional), mp_integer("sliding", sliding)));
    mp_discard(rt, mask);
    return mp_leave(&f, view);
}

/* eager_mask(): 0 where attention is allowed, the smallest number of the type elsewhere */
static struct mp_tensor *float_mask(struct mp_runtime *rt, struct mp_tensor *mask, enum mp_dtype dtype)
{
    struct mp_tensor *zero = mp_empty(rt, MP_SCALAR, dtype);
    struct mp_tensor *minimum = mp_empty(rt, MP_SCALAR, dtype);
    struct mp_tensor *out = mp_empty(rt, mask->shape, dtype);
    mp_record_copy(rt, "additive_mask", mask, out);
    mp_discard(rt, minimum);
    mp_discard(rt, zero);
    mp_discard(rt, mask);
    return out;
}

struct mp_tensor *mp_eager_causal_mask(struct mp_runtime *rt, int64_t batch, int64_t seq, enum mp_dtype dtype)
{
    return float_mask(rt, bool_mask(rt, batch, seq, NULL, 0, false), dtype);
}

/* attention_mask.to(bool) */
static struct mp_tensor *given_mask(struct mp_runtime *rt, const struct mp_inputs *in)
{
    struct mp_tensor *mask = mp_empty(rt, MP_SHAPE(in->batch, in->seq), MP_BOOL);
    mp_record_copy(rt, "to", in->attention_mask, mask);
    return mask;
}

struct mp_tensor *mp_causal_mask(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in, enum mp_dtype dtype, int64_t sliding)
{
    const bool padded = in->attention_mask && net->run->attention_mask == MP_MASK_PADDED;
    const bool windowed = sliding && in->seq >= sliding, cached = net->run->use_cache && net->run->checkpoint == MP_CHECKPOINT_NONE;
    struct mp_tensor *given = NULL, *mask = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    if (in->attention_mask)
        mp_let(&f, &given, given_mask(rt, in));
    else if (!cached)
        look_for_packed_sequences(rt, in->batch, in->seq);
    if (net->attention == MP_ATTENTION_EAGER) {
        mask = bool_mask(rt, in->batch, in->seq, given, sliding, false);
        return mp_leave(&f, float_mask(rt, mask, dtype));
    }
    if (given && !windowed)
        test_all_ones(rt, in->batch * in->seq);
    if (padded && !windowed) /* tested a second time when the first test fails */
        test_all_ones(rt, in->batch * in->seq);
    if (!padded && !windowed)
        return mp_leave(&f, NULL);
    return mp_leave(&f, bool_mask(rt, in->batch, in->seq, given, sliding, false));
}

struct mp_tensor *mp_bidirectional_mask(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in, enum mp_dtype dtype)
{
    if (!in->attention_mask)
        return NULL;
    struct mp_tensor *given = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &given, given_mask(rt, in));
    struct mp_tensor *row = mp_view(rt, given, MP_SHAPE(1, -1));
    mp_driver_event(rt, MP_DRIVER_HOST_PAGE, 0);
    mp_discard(rt, mp_reduce(rt, row, 1u << 1, false)); /* .all() */
    mp_discard(rt, row);
    if (net->run->attention_mask != MP_MASK_PADDED)
        return mp_leave(&f, NULL);
    struct mp_tensor *mask = bool_mask(rt, in->batch, in->seq, given, 0, true);
    if (net->attention == MP_ATTENTION_SDPA)
        return mp_leave(&f, mask);
    return mp_leave(&f, float_mask(rt, mask, dtype));
}
