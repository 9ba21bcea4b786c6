/* SPDX-License-Identifier: MIT */
/*
 * The functions of transformers.modeling_rope_utils, expression by expression: everything has one
 * number per pair of dimensions, so only the count of temporaries matters.
 */
#include "arch/rope.h"

/* ---- config.json ---- */

static const struct mp_value *parameters_of(const struct mp_value *config)
{
    const struct mp_value *const parameters = mp_value_get(config, "rope_parameters");
    const struct mp_value *const given = parameters && parameters->kind == MP_OBJECT
                                             ? parameters
                                             : mp_value_get(config, "rope_scaling");
    return given && given->kind == MP_OBJECT ? given : NULL;
}

static const char *type_of(const struct mp_value *parameters)
{
    static const char *const keys[] = {"rope_type", "type"};
    for (size_t i = 0; parameters && i < MP_ARRAY_LEN(keys); i++) {
        const struct mp_value *const type = mp_value_get(parameters, keys[i]);
        if (type && type->kind == MP_STRING)
            return type->as.string.text;
    }
    return "default";
}

static int64_t original_positions(const struct mp_value *config, const struct mp_value *parameters,
                                  int64_t positions)
{
    static const char key[] = "original_max_position_embeddings";
    const struct mp_value *value = parameters ? mp_value_get(parameters, key) : NULL;
    if (!value)
        value = mp_value_get(config, key);
    return value && value->kind == MP_INT ? value->as.integer : positions;
}

void mp_rope_configure(struct mp_config *c, struct mp_rope_config *rope, int64_t positions)
{
    static const struct {
        const char *name;
        enum mp_rope_type type;
    } known[] = {{"default", MP_ROPE_DEFAULT},   {"linear", MP_ROPE_LINEAR},
                 {"dynamic", MP_ROPE_DYNAMIC},   {"yarn", MP_ROPE_YARN},
                 {"longrope", MP_ROPE_LONGROPE}, {"llama3", MP_ROPE_LLAMA3},
                 {"su", MP_ROPE_LONGROPE}};
    const struct mp_value *const config = c->model->config, *const parameters =
                                                                parameters_of(config);
    const char *const name = type_of(parameters);
    *rope = (struct mp_rope_config){.positions = positions,
                                    .original_positions =
                                        original_positions(config, parameters, positions)};
    for (size_t i = 0; i < MP_ARRAY_LEN(known); i++) {
        if (strcmp(name, known[i].name) == 0) {
            rope->type = known[i].type;
            return;
        }
    }
    mp_config_problem(
        c, mp_value_get(config, "rope_parameters") ? "rope_parameters" : "rope_scaling",
        "rope_type '%.40s' is not one of default, linear, dynamic, yarn, longrope and llama3",
        name);
}

/* ---- expressions ---- */

static struct mp_tensor *numbers(struct mp_runtime *rt, int64_t n, enum mp_dtype dtype)
{
    return mp_empty(rt, MP_SHAPE(n), dtype);
}

/* The result of an operator that takes over its operand. */
static struct mp_tensor *next(struct mp_runtime *rt, struct mp_tensor *operand)
{
    struct mp_tensor *const result = numbers(rt, mp_numel(operand), MP_F32);
    mp_discard(rt, operand);
    return result;
}

/* 1.0 / x: the reciprocal, times the number; x stays */
static struct mp_tensor *divide_number_by(struct mp_runtime *rt, const struct mp_tensor *x)
{
    return next(rt, numbers(rt, mp_numel(x), MP_F32));
}

/* base ** exponent; a base that is a number becomes a tensor for the time */
static struct mp_tensor *power(struct mp_runtime *rt, struct mp_tensor *exponent, bool number)
{
    struct mp_tensor *const result = numbers(rt, mp_numel(exponent), MP_F32);
    if (number)
        mp_scratch(rt, 8);
    mp_discard(rt, exponent);
    return result;
}

/* arange(0, dim, 2) / dim: counted in int64 on the device, or on the host and moved */
static struct mp_tensor *exponents(struct mp_runtime *rt, int64_t n, bool on_device, bool integers)
{
    struct mp_tensor *range = integers && on_device ? numbers(rt, n, MP_I64) : NULL;
    struct mp_tensor *const floats = numbers(rt, n, MP_F32);
    mp_discard(rt, range);
    return next(rt, floats);
}

static struct mp_tensor *inverse(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_tensor *const result = divide_number_by(rt, x);
    mp_discard(rt, x);
    return result;
}

/* compute_default_rope_parameters counts in float32 at once; linear and dynamic scale in place or
 * scale the base */
static struct mp_tensor *plain(struct mp_runtime *rt, int64_t n, bool integers)
{
    return inverse(rt, power(rt, exponents(rt, n, true, integers), true));
}

static struct mp_tensor *llama3(struct mp_runtime *rt, int64_t n)
{
    struct mp_tensor *frequencies = NULL, *wavelength = NULL, *scaled = NULL, *smooth = NULL,
                     *smoothed = NULL, *medium = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &frequencies, plain(rt, n, true));
    mp_let(&f, &wavelength, divide_number_by(rt, frequencies));
    struct mp_tensor *const is_low = numbers(rt, n, MP_BOOL), *const divided =
                                                                  numbers(rt, n, MP_F32);
    mp_let(&f, &scaled,
           numbers(rt, n, MP_F32)); /* where(wavelen > low, inv_freq / factor, inv_freq) */
    mp_discard(rt, is_low);
    mp_discard(rt, divided);
    mp_let(&f, &smooth, next(rt, next(rt, divide_number_by(rt, wavelength))));
    /* (1 - smooth) * scaled / factor + smooth * scaled */
    struct mp_tensor *const left = next(rt, next(rt, numbers(rt, n, MP_F32))), *const right =
                                                                                   numbers(rt, n,
                                                                                           MP_F32);
    mp_let(&f, &smoothed, numbers(rt, n, MP_F32));
    mp_discard(rt, left);
    mp_discard(rt, right);
    /* ~(wavelen < high) * ~(wavelen > low) */
    struct mp_tensor *sides[2];
    for (int i = 0; i < 2; i++) {
        struct mp_tensor *const side = numbers(rt, n, MP_BOOL);
        sides[i] = numbers(rt, n, MP_BOOL);
        mp_discard(rt, side);
    }
    mp_let(&f, &medium, numbers(rt, n, MP_BOOL));
    mp_discard(rt, sides[0]);
    mp_discard(rt, sides[1]);
    mp_let(&f, &scaled, numbers(rt, n, MP_F32)); /* where(medium, smoothed, scaled) */
    return mp_leave(&f, scaled);
}

/* 1 - clamp((arange(n) - low) / (high - low), 0, 1) */
static struct mp_tensor *ramp(struct mp_runtime *rt, int64_t n)
{
    struct mp_tensor *const line = next(rt, next(rt, numbers(rt, n, MP_F32))), *const clamped =
                                                                                   numbers(rt, n,
                                                                                           MP_F32);
    mp_discard(rt, line);
    return next(rt, clamped);
}

static struct mp_tensor *yarn(struct mp_runtime *rt, int64_t n)
{
    struct mp_tensor *powers = NULL, *extrapolated = NULL, *interpolated = NULL, *factor = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &powers, power(rt, exponents(rt, n, true, true), true));
    mp_let(&f, &extrapolated, divide_number_by(rt, powers));
    mp_let(&f, &interpolated, inverse(rt, numbers(rt, n, MP_F32)));
    mp_let(&f, &factor, ramp(rt, n));
    /* interpolated * (1 - factor) + extrapolated * factor */
    struct mp_tensor *const left = next(rt, numbers(rt, n, MP_F32)), *const right =
                                                                         numbers(rt, n, MP_F32);
    struct mp_tensor *const result = numbers(rt, n, MP_F32);
    mp_discard(rt, left);
    mp_discard(rt, right);
    return mp_leave(&f, result);
}

/* 1 / (factors * base ** exponents) */
static struct mp_tensor *longrope(struct mp_runtime *rt, int64_t n)
{
    struct mp_tensor *factors = NULL, *shape = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &factors, numbers(rt, n, MP_F32));
    mp_let(&f, &shape, exponents(rt, n, true, true));
    return mp_leave(&f, inverse(rt, next(rt, power(rt, shape, true))));
}

static struct mp_tensor *compute(struct mp_runtime *rt, enum mp_rope_type type, int64_t n)
{
    switch (type) {
    case MP_ROPE_YARN: return yarn(rt, n);
    case MP_ROPE_LLAMA3: return llama3(rt, n);
    case MP_ROPE_LONGROPE: return longrope(rt, n);
    case MP_ROPE_DEFAULT:
    case MP_ROPE_LINEAR:
    case MP_ROPE_DYNAMIC: break;
    }
    return plain(rt, n, type != MP_ROPE_DEFAULT);
}

/* ---- the embedding ---- */

static void record_frequencies(struct mp_runtime *rt, const struct mp_net *net, struct mp_tensor *t)
{
    const struct mp_value *const config = net->run->model->config, *const parameters =
                                                                       parameters_of(config);
    double theta = 10000;
    if (!parameters || !mp_value_number(mp_value_get(parameters, "rope_theta"), &theta))
        mp_value_number(mp_value_get(config, "rope_theta"), &theta);
    mp_record(rt, "rotary_frequencies", MP_NO_TENSORS, MP_TENSORS(t),
              MP_ATTRIBUTES(mp_number("theta", theta), mp_text("rope_type", type_of(parameters))));
}

void mp_rope_new(struct mp_runtime *rt, const struct mp_net *net,
                 const struct mp_rope_config *config, int64_t dim, struct mp_rope *rope)
{
    const struct mp_shape half = MP_SHAPE(dim / 2);
    *rope = (struct mp_rope){.config = *config, .dim = dim, .cached_positions = config->positions};
    if (net->run->init_cpu) { /* computed on the host, then moved */
        rope->frequencies = mp_buffer(rt, half, MP_F32);
        record_frequencies(rt, net, rope->frequencies);
        rope->original = mp_buffer(rt, half, MP_F32);
        record_frequencies(rt, net, rope->original);
        return;
    }
    rt->category = MP_CATEGORY_BUFFER;
    rope->frequencies = mp_buffer_register(rt, mp_take(rt, compute(rt, config->type, dim / 2)));
    record_frequencies(rt, net, rope->frequencies);
    rope->original = mp_buffer(rt, half, MP_F32); /* original_inv_freq */
    mp_record_copy(rt, "clone", rope->frequencies, rope->original);
    mp_driver_event(rt, MP_DRIVER_ASSERTIONS, 0); /* one of those kernels */
    mp_discard(rt, compute(rt, config->type, dim / 2)); /* _init_weights computes it once more */
    rt->category = MP_CATEGORY_TEMPORARY;
}

static void replace(struct mp_runtime *rt, struct mp_rope *rope, struct mp_tensor *frequencies)
{
    struct mp_tensor *const old = rope->frequencies;
    rope->frequencies = mp_take(rt, frequencies);
    mp_tag(rt, rope->frequencies->storage, MP_CATEGORY_BUFFER);
    mp_tensor_unref(rt, old);
}

/* seq_len > bound, looked at by Python */
static void compare(struct mp_runtime *rt)
{
    mp_scratch(rt, 1);
}

/* max(position_ids) + 1; owned */
static struct mp_tensor *sequence_length(struct mp_runtime *rt, struct mp_tensor *position_ids)
{
    struct mp_tensor *const largest =
        mp_reduce(rt, position_ids, (1u << position_ids->shape.n) - 1, false);
    struct mp_tensor *const length = mp_take(rt, mp_empty(rt, MP_SCALAR, MP_I64));
    mp_discard(rt, largest);
    return length;
}

/* _compute_dynamic_ntk_parameters for a length that is a tensor, and so is the base that follows
 * from it */
static struct mp_tensor *grow(struct mp_runtime *rt, const struct mp_rope *rope)
{
    struct mp_tensor *longest = NULL, *base = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    struct mp_tensor *const positions = mp_empty(rt, MP_SCALAR, MP_I64);
    mp_let(&f, &longest, mp_empty(rt, MP_SCALAR, MP_I64));
    mp_discard(rt, positions);
    /* base * ((factor * longest / positions) - (factor - 1)) ** (dim / (dim - 2)) */
    struct mp_tensor *term = mp_empty(rt, MP_SCALAR, MP_F32);
    for (int i = 0; i < 4; i++) {
        struct mp_tensor *const result = mp_empty(rt, MP_SCALAR, MP_F32);
        mp_discard(rt, term);
        term = result;
    }
    mp_let(&f, &base, term);
    return mp_leave(&f, inverse(rt, power(rt, exponents(rt, rope->dim / 2, false, true), false)));
}

/* A longer sequence than ever before gives new frequencies; back in the model's own range, the
 * original ones return. */
static void update_dynamic(struct mp_runtime *rt, struct mp_rope *rope, struct mp_tensor *length,
                           int64_t seq)
{
    compare(rt);
    if (seq > rope->cached_positions) {
        replace(rt, rope, grow(rt, rope));
        mp_tensor_unref(rt, rope->cached);
        rope->cached = mp_tensor_ref(length);
        rope->cached_positions = seq;
    }
    compare(rt);
    if (seq >= rope->config.positions)
        return;
    if (rope->cached)
        compare(rt);
    if (rope->cached_positions > rope->config.positions) {
        replace(rt, rope, rope->original);
        mp_tensor_unref(rt, rope->cached);
        rope->cached = NULL;
        rope->cached_positions = rope->config.positions;
    }
}

void mp_rope_update(struct mp_runtime *rt, struct mp_rope *rope, struct mp_tensor *position_ids)
{
    const int64_t seq = mp_dim(position_ids, -1);
    const bool grad_enabled = rt->grad_enabled;
    if (rope->config.type != MP_ROPE_DYNAMIC && rope->config.type != MP_ROPE_LONGROPE)
        return;
    rt->grad_enabled = false;
    struct mp_tensor *const length = sequence_length(rt, position_ids);
    if (rope->config.type == MP_ROPE_DYNAMIC) {
        update_dynamic(rt, rope, length, seq);
    } else {
        compare(rt);
        replace(rt, rope,
                seq > rope->config.original_positions ? longrope(rt, rope->dim / 2)
                                                      : rope->original);
    }
    mp_tensor_unref(rt, length);
    rt->grad_enabled = grad_enabled;
}
