/* Convolution of 3 x 3 windows, stride 1, by F(4 x 4, 3 x 3) (Lavin and Gray 2015): of the input's tiles of 6 x 6, at each of
   the 36 places a product with the transformed weights, then tiles of 4 x 4 of the output. R tiles of a product are side by
   side. Weights: bias [tiles of channels][T]; [36][tiles of channels][channels in][T]. Workspace: the input's tiles
   [36][groups of R tiles][blocks in][R][B], the products [36][tiles of channels][groups of R tiles][R][T]. */

#define INPUT_LINE(a, b, c, d, e, f, to, stride) \
    { \
        FLOATV odd_ = d - 4.0f * b, even_ = e - 4.0f * c, far_ = 2.0f * (d - b), near_ = e - c; \
        to[0 * stride] = 4.0f * a - 5.0f * c + e; \
        to[1 * stride] = odd_ + even_; \
        FLOATV other_ = even_ - odd_; \
        FLOATV last_ = 4.0f * b - 5.0f * d + f; \
        to[3 * stride] = near_ + far_; \
        to[4 * stride] = near_ - far_; \
        to[2 * stride] = other_; \
        to[5 * stride] = last_; \
    }

__kernel void winograd_input(
    __global const float *arena, __global float *workspace, int input, int height, int width, int in_blocks, int across,
    int places, int groups, int pad_y, int pad_x)
{
    int place = get_global_id(0), channel = get_global_id(1) * V, block = channel / B;
    if (place >= groups * R || block >= in_blocks)
        return;
    int y = place / across * 4 - pad_y, x = place % across * 4 - pad_x;
    __global const float *from = arena + input + block * height * width * B + channel % B;
    __global float *to = workspace + (place / R * in_blocks + block) * R * B + place % R * B + channel % B;
    int stride = groups * in_blocks * R * B;
    FLOATV line[36];
    for (int i = 0; i < 6; ++i) {
        FLOATV d[6];
        int inside = place < places && (uint)(y + i) < (uint)height;
#pragma unroll
        for (int j = 0; j < 6; ++j)
            d[j] = inside && (uint)(x + j) < (uint)width ? VLOAD(from + ((y + i) * width + x + j) * B) : (FLOATV)(0.0f);
        FLOATV *row = line + i * 6;
        INPUT_LINE(d[0], d[1], d[2], d[3], d[4], d[5], row, 1)
    }
    for (int j = 0; j < 6; ++j) {
        FLOATV column[6];
        INPUT_LINE(line[j], line[6 + j], line[12 + j], line[18 + j], line[24 + j], line[30 + j], column, 1)
#pragma unroll
        for (int i = 0; i < 6; ++i)
            VSTORE(column[i], to + (i * 6 + j) * stride);
    }
}

__kernel void winograd_product(
    __global const float *weights, __global float *workspace, int in_blocks, int tiles, int groups, int products)
{
    int group = get_global_id(0), tile = get_global_id(1), element = get_global_id(2);
    if (group >= groups || tile >= tiles)
        return;
    __global const float *at = workspace + (element * groups + group) * in_blocks * R * B;
    __global const float *w = weights + tiles * T + (element * tiles + tile) * in_blocks * B * T;
    FLOATV sum[R][N];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n)
            sum[r][n] = 0.0f;
    for (int block = 0; block < in_blocks; ++block, at += R * B) {
        if (block % groups == group) /* items of all groups, which run one after the other, fetch the next tile's weights */
            for (int place = 0; place < B * T; place += 16)
                SOON(w + in_blocks * B * T + place, 2);
        for (int i = 0; i < B; ++i, w += T) {
            FLOATV factor[N];
#pragma unroll
            for (int n = 0; n < N; ++n)
                factor[n] = VLOAD(w + n * V);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                FLOATV x = at[r * B + i];
#pragma unroll
                for (int n = 0; n < N; ++n)
                    sum[r][n] += x * factor[n];
            }
        }
    }
    __global float *to = workspace + products + ((element * tiles + tile) * groups + group) * R * T;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n)
            VSTORE(sum[r][n], to + r * T + n * V);
}

#define OUTPUT_LINE(a, b, c, d, e, f, to) \
    { \
        FLOATV sum_ = b + c, difference_ = b - c, far_ = d + e, apart_ = d - e; \
        to[0] = a + sum_ + far_; \
        to[1] = difference_ + 2.0f * apart_; \
        to[2] = sum_ + 4.0f * far_; \
        to[3] = difference_ + 8.0f * apart_ + f; \
    }

__kernel void winograd_output(
    __global float *arena, __global const float *weights, __global const float *workspace, int output, int height, int width,
    int channels, int across, int places, int tiles, int groups, int products, POSTS_PARAMETERS)
{
    int place = get_global_id(0), channel = get_global_id(1) * V;
    if (place >= places || channel >= (channels + B - 1) / B * B)
        return;
    __global const float *from = workspace + products + (channel / T * groups * R + place) * T + channel % T;
    int stride = tiles * groups * R * T;
    FLOATV line[24], bias = VLOAD(weights + channel);
    for (int j = 0; j < 6; ++j) {
        FLOATV m[6], column[4];
#pragma unroll
        for (int i = 0; i < 6; ++i)
            m[i] = VLOAD(from + (i * 6 + j) * stride);
        OUTPUT_LINE(m[0], m[1], m[2], m[3], m[4], m[5], column)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            line[i * 6 + j] = column[i];
    }
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    int y = place / across * 4, x = place % across * 4;
    for (int i = 0; i < 4 && y + i < height; ++i) {
        FLOATV row[4];
        const FLOATV *l = line + i * 6;
        OUTPUT_LINE(l[0], l[1], l[2], l[3], l[4], l[5], row)
        for (int j = 0; j < 4 && x + j < width; ++j)
            write_blocked(
                &given, arena, output, row[j] + bias, (y + i) * width + x + j, height * width, channel, channels);
    }
}
