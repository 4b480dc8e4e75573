/* Rows of K values times a matrix to rows of `columns` values of a tensor that has `leading` columns. A work item computes N
   vectors of columns of R rows. Weights: bias [tiles][T]; [tiles][K][T]. */
__kernel void linear(
    __global float *arena, __global const float *weights, int input, int output, int rows, int inner, int columns, int leading,
    int tiles, POSTS_PARAMETERS)
{
    int first_row = get_global_id(0) * R, tile = get_global_id(1);
    if (first_row >= rows || tile >= tiles)
        return;
    __global const float *at[R], *w = weights + tiles * T + tile * inner * T;
    FLOATV sum[R][N];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        at[r] = arena + input + min(first_row + r, rows - 1) * inner;
#pragma unroll
        for (int n = 0; n < N; ++n)
            sum[r][n] = VLOAD(weights + tile * T + n * V);
    }
    for (int k = 0; k < inner; ++k, w += T) {
        FLOATV factor[N];
#pragma unroll
        for (int n = 0; n < N; ++n)
            factor[n] = VLOAD(w + n * V);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            FLOATV x = at[r][k];
#pragma unroll
            for (int n = 0; n < N; ++n)
                sum[r][n] += x * factor[n];
        }
    }
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    int column = tile * T, count = min(R, rows - first_row);
    if (given.bounds && count == R && column + T <= columns) {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n) {
                int place = (first_row + r) * leading + column + n * V;
                FLOATV x = sum[r][n];
                if (given.sums)
                    x += VLOAD(arena + given.operand[0] + place);
                VSTORE(min(max(x, given.low), given.high), arena + output + place);
            }
        return;
    }
    FLOATV kept[R][N];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n)
            kept[r][n] = sum[r][n];
    for (int r = 0; r < count; ++r)
        for (int n = 0; n < N && column + n * V < columns; ++n) {
            int place = (first_row + r) * leading + column + n * V, width = min(V, columns - column - n * V);
            FLOATV x = after(&given, arena, kept[r][n], place, column + n * V, width);
            if (width == V) {
                VSTORE(x, arena + output + place);
            } else {
                float values[V];
                VSTORE(x, values);
                for (int i = 0; i < width; ++i)
                    arena[output + place + i] = values[i];
            }
        }
}
