// libcuda.so.1 and libnvidia-ml.so.1 are this: nothing but a library that needs the stand-in, in which who asks them for
// a function finds it.
