/* Does nothing: what handing over costs is measured with it. */
__kernel void empty(void) {}
