/* Rows of K values times a matrix, for GPUs. Weights: bias [tiles][GC]; [tiles][K][GC]. Local size of `linear_tiled`: GC / V,
   GP / R; a work group computes GP rows by GC columns from tiles in local memory, a work item R rows by a vector of V columns (V
   is 4, N is 1). Of `linear_row`: GC / V, SLICES; a work group computes GC columns of one row, each work item a slice of K. */
#define ITEMS (GC / V * GP / R)
#define DEPTH 16
#define ROW_LOADS ((GP * DEPTH / V + ITEMS - 1) / ITEMS)
#define WEIGHT_LOADS ((GC * DEPTH / V + ITEMS - 1) / ITEMS)
#define PITCH (GP + 4)
#define SLICES 16
#define LINEAR_PARAMETERS \
    __global float *arena, __global const float *weights, int input, int output, int rows, int inner, int columns, int leading, \
    int tiles, POSTS_PARAMETERS

void write_columns(
    const posts_t *given, __global float *arena, int output, FLOATV x, int row, int column, int columns, int leading)
{
    int place = row * leading + column, width = min(V, columns - column);
    if (width <= 0)
        return;
    x = after(given, arena, x, place, column, width);
    if (width == V) {
        VSTORE(x, arena + output + place);
        return;
    }
    float values[V];
    VSTORE(x, values);
    for (int i = 0; i < width; ++i)
        arena[output + place + i] = values[i];
}

__kernel void linear_tiled(LINEAR_PARAMETERS)
{
    __local __attribute__((aligned(16))) float near[DEPTH * PITCH], factors[DEPTH * GC] __attribute__((aligned(16)));
    int column = get_local_id(0), row = get_local_id(1), item = row * (GC / V) + column;
    int tile = get_group_id(0), begin = get_group_id(1) * GP;
    __global const float *w = weights + tiles * GC + tile * inner * GC;
    FLOATV sum[R], soon[ROW_LOADS], soon_factors[WEIGHT_LOADS];
#pragma unroll
    for (int r = 0; r < R; ++r)
        sum[r] = ALIGNED(weights + tile * GC + column * V);
    for (int k = -DEPTH; k < inner; k += DEPTH) {
        if (k >= 0) {
#pragma unroll
            for (int l = 0; l < ROW_LOADS; ++l) {
                int which = item + l * ITEMS, at = which / (DEPTH / V), lane = which % (DEPTH / V) * V;
                if (which < GP * DEPTH / V) {
                    near[lane * PITCH + at] = soon[l].x;
                    near[(lane + 1) * PITCH + at] = soon[l].y;
                    near[(lane + 2) * PITCH + at] = soon[l].z;
                    near[(lane + 3) * PITCH + at] = soon[l].w;
                }
            }
#pragma unroll
            for (int l = 0; l < WEIGHT_LOADS; ++l)
                if (item + l * ITEMS < GC * DEPTH / V)
                    VSTORE(soon_factors[l], factors + (item + l * ITEMS) * V);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        int next = k + DEPTH;
        if (next < inner) {
#pragma unroll
            for (int l = 0; l < ROW_LOADS; ++l) {
                int which = item + l * ITEMS, from = begin + which / (DEPTH / V), at = next + which % (DEPTH / V) * V;
                soon[l] = from < rows && which < GP * DEPTH / V ? load_first(arena + input + from * inner + at, inner - at)
                                                              : (FLOATV)(0.0f);
            }
#pragma unroll
            for (int l = 0; l < WEIGHT_LOADS; ++l) {
                int which = item + l * ITEMS;
                if (which < GC * DEPTH / V)
                    soon_factors[l] = next + which / (GC / V) < inner ? ALIGNED(w + next * GC + which * V) : (FLOATV)(0.0f);
            }
        }
        if (k >= 0) {
            ADD_TILES(DEPTH, GC, );
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
    posts_t given = POSTS_GIVEN;
    bounding(&given);
#pragma unroll
    for (int r = 0; r < R; ++r)
        if (begin + row * R + r < rows)
            write_columns(&given, arena, output, sum[r], begin + row * R + r, tile * GC + column * V, columns, leading);
}

__kernel void linear_row(LINEAR_PARAMETERS)
{
    __local __attribute__((aligned(16))) float partial[SLICES * GC];
    int column = get_local_id(0), slice = get_local_id(1), tile = get_group_id(0), row = get_group_id(1);
    __global const float *w = weights + tiles * GC + tile * inner * GC + column * V, *from = arena + input + row * inner;
    FLOATV sum = 0.0f;
#pragma unroll 4
    for (int k = slice; k < inner; k += SLICES)
        sum += from[k] * ALIGNED(w + k * GC);
    VSTORE(sum, partial + slice * GC + column * V);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0)
        return;
    sum = ALIGNED(weights + tile * GC + column * V);
    for (int other = 0; other < SLICES; ++other)
        sum += ALIGNED(partial + other * GC + column * V);
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    write_columns(&given, arena, output, sum, row, tile * GC + column * V, columns, leading);
}
