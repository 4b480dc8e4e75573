/* Rows of `size` values, each by a work group of GPUs: what lies side by side is read side by side. */
#define ITEMS 64
#define TOGETHER(value, of_two) \
    part[item] = value; \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (int half_of = ITEMS / 2; half_of > 0; half_of /= 2) { \
        if (item < half_of) \
            part[item] = of_two(part[item], part[item + half_of]); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    } \
    value = part[0]; \
    barrier(CLK_LOCAL_MEM_FENCE)
#define SUM(a, b) ((a) + (b))

/* See layer_norm.cl. */
__kernel void layer_norm_group(
    __global float *arena, __global const float *weights, int input, int output, int rows, int size, float epsilon, int scales,
    int shifts, int apart)
{
    __local float part[ITEMS];
    int row = get_group_id(0), item = get_local_id(0);
    __global const float *from = arena + input + row * size;
    __global float *to = arena + output + row * size;
    float mean = 0.0f, squares = 0.0f;
    for (int i = item; i < size; i += ITEMS)
        mean += from[i];
    TOGETHER(mean, SUM);
    mean /= size;
    for (int i = item; i < size; i += ITEMS)
        squares += (from[i] - mean) * (from[i] - mean);
    TOGETHER(squares, SUM);
    float factor = 1.0f / sqrt(squares / size + epsilon);
    for (int i = item; i < size; i += ITEMS) {
        float x = (from[i] - mean) * factor;
        to[i] = (scales ? x * weights[i] : x) + (shifts ? weights[apart + i] : 0.0f);
    }
}

/* See softmax.cl. */
__kernel void softmax_group(
    __global const float *from, int input, __global float *to, int output, int size, int inner, int logarithm)
{
    __local float part[ITEMS];
    int item = get_local_id(0), place = get_group_id(0) / inner * size * inner + get_group_id(0) % inner;
    from += input + place;
    to += output + place;
    float most = -FLT_MAX, sum = 0.0f;
    for (int i = item; i < size; i += ITEMS)
        most = fmax(most, from[i * inner]);
    TOGETHER(most, fmax);
    for (int i = item; i < size; i += ITEMS)
        sum += exp(from[i * inner] - most);
    TOGETHER(sum, SUM);
    float share = 1.0f / sum, less = most + log(sum);
    for (int i = item; i < size; i += ITEMS)
        to[i * inner] = logarithm ? from[i * inner] - less : exp(from[i * inner] - most) * share;
}
