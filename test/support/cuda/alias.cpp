// libcuda.so.1, libnvidia-ml.so.1 and libnccl.so.2 are this: nothing but a library that needs the stand-in, in which who asks them for
// a function finds it.

extern "C" unsigned cuInit(unsigned flags);

// Linkers leave out what nothing is needed of.
__attribute__((used)) static unsigned (*const needed)(unsigned) = cuInit;
