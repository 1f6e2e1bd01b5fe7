// A kernel that spill_test.py must refuse: its array has indices that the compiler does not know, and so lies in local
// memory.
__global__ void spilling(int* out, int count) {
  int values[256] = {};
  for (int i = 0; i < count; ++i) values[out[i] % 256] += i;
  out[0] = values[count % 256];
}
