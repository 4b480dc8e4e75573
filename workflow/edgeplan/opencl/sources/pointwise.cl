/* Operations on each element by itself, up to three one after the other; the second operand of one is broadcast by strides of 0.
   A work item computes a block of lanes (edgeplan.opencl.spaces). */

#define STRIDES(name) int name##_block, int name##_row, int name##_pixel, int name##_lane
#define OPERATION(i) \
    int code##i, float alpha##i, float beta##i, int in_weights##i, int operand##i, STRIDES(operand##i)
#define APPLY(i) \
    if (code##i) { \
        FLOATV other = 0.0f; \
        if (code##i >= 64) \
            other = lanes_at((in_weights##i ? weights : arena) + operand##i + z * operand##i##_block + y * operand##i##_row + \
                             x * operand##i##_pixel, operand##i##_lane, lane, valid); \
        value = operation(code##i, value, other, alpha##i, beta##i); \
    }

FLOATV lanes_at(__global const float *from, int stride, int lane, int valid)
{
    if (stride == 1 && valid >= V)
        return VLOAD(from + lane);
    float values[V];
    for (int i = 0; i < V; ++i)
        values[i] = i < valid ? from[(lane + i) * stride] : 0.0f;
    return VLOAD(values);
}

FLOATV operation(int code, FLOATV x, FLOATV other, float alpha, float beta)
{
    switch (code) {
    case 64: return x + other;
    case 65: return x * other;
    case 66: return x - other;
    case 67: return x / other;
    case 68: return fmin(x, other);
    case 69: return fmax(x, other);
    }
    return eltwise(code, x, alpha, beta);
}

__kernel void pointwise(
    __global float *arena, __global const float *weights, int input, STRIDES(in), int output, STRIDES(out), int width,
    int height, int blocks, int lanes, int padded, OPERATION(0), OPERATION(1), OPERATION(2))
{
    int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    if (x >= width || y >= height || z >= blocks)
        return;
    __global const float *from = arena + input + z * in_block + y * in_row + x * in_pixel;
    __global float *to = arena + output + z * out_block + y * out_row + x * out_pixel;
    for (int lane = 0; lane < B; lane += V) {
        int valid = lanes - z * B - lane;
        FLOATV value = lanes_at(from, in_lane, lane, valid);
        APPLY(0)
        APPLY(1)
        APPLY(2)
        if (out_lane == 1 && valid >= V) {
            VSTORE(value, to + lane);
            continue;
        }
        float values[V];
        VSTORE(value, values);
        for (int i = 0; i < V; ++i)
            if (i < valid || padded)
                to[(lane + i) * out_lane] = i < valid ? values[i] : 0.0f;
    }
}
