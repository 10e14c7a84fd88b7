// The functions of libtorch that the tripwire watches, by their exported names: X(library, symbol).
//
// libtorch calls them through its procedure linkage table or through vtables, also from within the library itself, so
// that a library loaded before it can take their place; tripwire_control.py shows that for those that can be reached.
// The others are what RequestCallbackImpl overrides: nothing in Python's torch calls them.
#pragma once

// clang-format off
#define TRIPWIRE_SYMBOLS(X) \
  /* RequestCallbackNoPython: messages of RRefs and of autograd */ \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython14processMessageERNS1_7MessageESt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython10processRpcERNS1_14RpcCommandBaseERKNS1_11MessageTypeERKSt6vectorIN3c106StreamESaISA_EE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython23processScriptRemoteCallERNS1_14RpcCommandBaseERKSt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython23processPythonRemoteCallERNS1_14RpcCommandBaseERKSt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython26processScriptRRefFetchCallERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython26processPythonRRefFetchCallERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython21processRRefUserDeleteERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython22processRRefChildAcceptERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython22processRRefForkRequestERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython25processForwardAutogradReqERNS1_14RpcCommandBaseERKSt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython26processBackwardAutogradReqERNS1_14RpcCommandBaseERKSt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython32processCleanupAutogradContextReqERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython19processRRefBackwardERNS1_14RpcCommandBaseE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython15assignOwnerRRefERKNS1_16GloballyUniqueIdES5_RKN3c1013intrusive_ptrINS6_6ivalue6FutureENS6_6detail34intrusive_target_default_null_typeIS9_EEEE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython17retrieveOwnerRRefERKNS1_16GloballyUniqueIdE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython16handleRRefDeleteERN3c1013intrusive_ptrINS1_4RRefENS3_6detail34intrusive_target_default_null_typeIS5_EEEE) \
  X("libtorch_cpu.so", _ZNK5torch11distributed3rpc23RequestCallbackNoPython26processRunWithProfilingReqERNS1_14RpcCommandBaseE) \
  /* RequestCallbackImpl: the same, where Python is needed */ \
  X("libtorch_python.so", _ZNK5torch11distributed3rpc19RequestCallbackImpl23processScriptRemoteCallERNS1_14RpcCommandBaseERKSt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_python.so", _ZNK5torch11distributed3rpc19RequestCallbackImpl23processPythonRemoteCallERNS1_14RpcCommandBaseERKSt6vectorIN3c106StreamESaIS7_EE) \
  X("libtorch_python.so", _ZNK5torch11distributed3rpc19RequestCallbackImpl26processPythonRRefFetchCallERNS1_14RpcCommandBaseE) \
  X("libtorch_python.so", _ZNK5torch11distributed3rpc19RequestCallbackImpl19processRRefBackwardERNS1_14RpcCommandBaseE) \
  X("libtorch_python.so", _ZNK5torch11distributed3rpc19RequestCallbackImpl16handleRRefDeleteERN3c1013intrusive_ptrINS1_4RRefENS3_6detail34intrusive_target_default_null_typeIS5_EEEE) \
  /* the ways into a backward pass of libtorch's engine */ \
  X("libtorch_cpu.so", _ZN5torch11distributed8autograd8backwardElRKSt6vectorIN2at6TensorESaIS4_EEb) \
  X("libtorch_cpu.so", _ZN5torch11distributed8autograd10DistEngine7executeElRKSt6vectorIN2at6TensorESaIS5_EEb) \
  X("libtorch_cpu.so", _ZN5torch11distributed8autograd10DistEngine24executeSendFunctionAsyncERKSt10shared_ptrINS1_19DistAutogradContextEERKS3_INS1_15SendRpcBackwardEEb) \
  X("libtorch_python.so", _ZN5torch11distributed3rpc6PyRRef8backwardElb) \
  X("libtorch_python.so", _ZN5torch11distributed3rpc6PyRRef8backwardElbRKN3c1013intrusive_ptrINS1_4RRefENS3_6detail34intrusive_target_default_null_typeIS5_EEEE)
// clang-format on
