/* What all kernels share. Compile-time: B, channels of a block of the layout; V, floats of a vector; R, pixels or rows, and N,
   vectors of V channels or columns, that a work item computes.

   Activations lie in one buffer, the arena, at offsets in elements. Channels are padded with zeros to whole blocks, and every
   kernel leaves them zero. */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FLOATV JOIN(float, V)
#define VLOAD(from) JOIN(vload, V)(0, from)
#define VSTORE(value, to) JOIN(vstore, V)(value, 0, to)
#define T (N * V)
#ifndef ALIGNED /* a vector at a multiple of its size, of which CUDA's prelude knows more */
#define ALIGNED(from) VLOAD(from)
#endif

/* Add to a work item's sums what its R rows (V is 4) of the tile `near` and its vector of the tile `factors`, both in local
   memory, give over `depth` values; `width` lies between two rows of factors, `[0]` is `place` where sums have N vectors. */
#define ADD_TILES(depth, width, place) \
    _Pragma("unroll") for (int i = 0; i < depth; ++i) { \
        FLOATV factor = ALIGNED(factors + i * width + column * V); \
        _Pragma("unroll") for (int r = 0; r < R; r += 4) { \
            FLOATV four = ALIGNED(near + i * PITCH + row * R + r); \
            sum[r] place += four.x * factor; \
            sum[r + 1] place += four.y * factor; \
            sum[r + 2] place += four.z * factor; \
            sum[r + 3] place += four.w * factor; \
        } \
    }

/* What is read soon, into the first cache (3) or the second (2): planes of channels lie too far apart for a CPU to foresee. */
#if defined(__x86_64__) || defined(__aarch64__)
#define SOON(from, cache) __builtin_prefetch((const void *)(size_t)(from), 0, cache)
#else
#define SOON(from, cache)
#endif

/* Post-operations: the codes of edgeplan.opencl.post_ops, eight bits each, the first lowest; 0 ends them. */
enum {
    RELU = 1, CLIP, LOGISTIC, HARDSWISH, HARDSIGMOID, SWISH, TANH, ELU, LINEAR, SQUARE, ABS, SQRT, EXP, LOG, POW, GELU_TANH,
    GELU_ERF, SOFT_RELU, MISH, ADD_SAME = 64, MUL_SAME, ADD_CHANNEL, MUL_CHANNEL
};

#define POSTS_PARAMETERS \
    int posts, float alpha0, float beta0, int operand0, float alpha1, float beta1, int operand1, float alpha2, float beta2, \
    int operand2, float alpha3, float beta3, int operand3
#define POSTS_GIVEN \
    { posts, {alpha0, alpha1, alpha2, alpha3}, {beta0, beta1, beta2, beta3}, {operand0, operand1, operand2, operand3} }

typedef struct {
    int kinds;
    float alpha[4], beta[4];
    int operand[4];
    int bounds, sums; /* from here on: set by `bounding` */
    float low, high;
} posts_t;

FLOATV eltwise(int kind, FLOATV x, float alpha, float beta)
{
    switch (kind) {
    case RELU: return select(alpha * x, x, x > 0.0f);
    case CLIP: return fmin(fmax(x, alpha), beta);
    case LOGISTIC: return 1.0f / (1.0f + exp(-x));
    case HARDSWISH: return x * fmin(fmax(alpha * x + beta, 0.0f), 1.0f);
    case HARDSIGMOID: return fmin(fmax(alpha * x + beta, 0.0f), 1.0f);
    case SWISH: return x / (1.0f + exp(-alpha * x));
    case TANH: return tanh(x);
    case ELU: return select(alpha * expm1(x), x, x > 0.0f);
    case LINEAR: return alpha * x + beta;
    case SQUARE: return x * x;
    case ABS: return fabs(x);
    case SQRT: return sqrt(x);
    case EXP: return exp(x);
    case LOG: return log(x);
    case POW: return alpha * pow(x, (FLOATV)(beta));
    case GELU_TANH: return 0.5f * x * (1.0f + tanh(0.7978845608f * x * (1.0f + 0.044715f * x * x)));
    case GELU_ERF: return 0.5f * x * (1.0f + erf(0.7071067812f * x));
    case SOFT_RELU: return (fmax(alpha * x, 0.0f) + log1p(exp(-fabs(alpha * x)))) / alpha;
    case MISH: return x * tanh(fmax(x, 0.0f) + log1p(exp(-fabs(x))));
    }
    return x;
}

/* The first `count` values in memory; zero behind them, where nothing may be read. */
FLOATV load_first(__global const float *from, int count)
{
    if (count >= V)
        return VLOAD(from);
    float values[V];
    for (int i = 0; i < V; ++i)
        values[i] = i < count ? from[i] : 0.0f;
    return VLOAD(values);
}

/* The post-operations on `count` values whose first lies at `place` of the output and is of channel (or column) `channel`. */
FLOATV after(const posts_t *posts, __global const float *arena, FLOATV x, int place, int channel, int count)
{
    for (int i = 0; i < 4; ++i) {
        int kind = (posts->kinds >> 8 * i) & 255;
        if (!kind)
            break;
        if (kind < ADD_SAME) {
            x = eltwise(kind, x, posts->alpha[i], posts->beta[i]);
        } else {
            FLOATV other = load_first(arena + posts->operand[i] + (kind < ADD_CHANNEL ? place : channel), count);
            x = kind == ADD_SAME || kind == ADD_CHANNEL ? x + other : x * other;
        }
    }
    return x;
}

/* Find out whether the post-operations are at most a sum, then a RELU without slope or a CLIP: those take two instructions. */
void bounding(posts_t *posts)
{
    int sums = (posts->kinds & 255) == ADD_SAME, kind = sums ? posts->kinds >> 8 : posts->kinds;
    posts->sums = sums;
    posts->low = kind == CLIP ? posts->alpha[sums] : kind == RELU ? 0.0f : -INFINITY;
    posts->high = kind == CLIP ? posts->beta[sums] : INFINITY;
    posts->bounds = kind == 0 || kind == CLIP || (kind == RELU && posts->alpha[sums] == 0.0f);
}

/* The first `count` of the values; zero behind them. */
FLOATV first(FLOATV x, int count)
{
    float values[V];
    VSTORE(x, values);
    for (int i = 0; i < V; ++i)
        values[i] = i < count ? values[i] : 0.0f;
    return VLOAD(values);
}

/* Write a vector of channels of a pixel of a blocked output of `size` pixels; nothing behind the last block. */
void write_blocked(
    const posts_t *posts, __global float *arena, int output, FLOATV x, int pixel, int size, int channel, int channels)
{
    if (channel >= (channels + B - 1) / B * B)
        return;
    int place = (channel / B * size + pixel) * B + channel % B;
    if (posts->bounds && channel + V <= channels) {
        if (posts->sums)
            x += VLOAD(arena + posts->operand[0] + place);
        x = min(max(x, posts->low), posts->high);
    } else {
        x = first(after(posts, arena, x, place, channel, channels - channel), channels - channel);
    }
    VSTORE(x, arena + output + place);
}

/* Write R pixels of N vectors of channels, from the `skip`th to before the `count`th: in registers where post-operations are
   bounds and no channel is padding. Inlined, since what is passed by address does not stay in registers. */
__attribute__((always_inline)) void write_tile(
    const posts_t *posts, __global float *arena, int output, FLOATV (*values)[N], int pixel, int skip, int count, int size,
    int channel, int channels)
{
    if (posts->bounds && skip == 0 && count >= R && channel + T <= channels) {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n) {
                int of = channel + n * V, place = (of / B * size + pixel + r) * B + of % B;
                FLOATV x = values[r][n];
                if (posts->sums)
                    x += VLOAD(arena + posts->operand[0] + place);
                VSTORE(min(max(x, posts->low), posts->high), arena + output + place);
            }
        return;
    }
    FLOATV kept[R][N];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n)
            kept[r][n] = values[r][n];
    for (int r = skip; r < R && r < count; ++r)
        for (int n = 0; n < N; ++n)
            write_blocked(posts, arena, output, kept[r][n], pixel + r, size, channel + n * V, channels);
}
