/* Copies lanes (edgeplan.opencl.spaces), from any layout to any. Lane c of the target is lane `c % groups * each + c / groups +
   shift` of the source; below 0 the target stays as it is, from `limit` on it is zero if it is padded. */
__kernel void move(
    __global const float *from, int input, int in_block, int in_row, int in_pixel, int in_lane, __global float *to, int output,
    int out_block, int out_row, int out_pixel, int out_lane, int width, int height, int blocks, int lanes, int padded,
    int groups, int each, int shift, int limit)
{
    int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    if (x >= width || y >= height || z >= blocks)
        return;
    from += input + y * in_row + x * in_pixel;
    to += output + z * out_block + y * out_row + x * out_pixel;
    int begin = z * B + shift;
    if (groups == 1 && in_lane == 1 && out_lane == 1 && begin >= 0 && begin + B <= limit && z * B + B <= lanes &&
        (begin % B == 0 || in_block == B)) {
        from += in_block == B ? begin : begin / B * in_block;
        for (int lane = 0; lane < B; lane += V)
            VSTORE(VLOAD(from + lane), to + lane);
        return;
    }
    for (int lane = 0; lane < B; ++lane) {
        int c = z * B + lane, source = c % groups * each + c / groups + shift;
        if (c >= lanes) {
            if (padded)
                to[lane * out_lane] = 0.0f;
        } else if (source >= 0 && source < limit) {
            to[lane * out_lane] = from[source / B * in_block + source % B * in_lane];
        } else if (source >= limit && padded) {
            to[lane * out_lane] = 0.0f;
        }
    }
}
