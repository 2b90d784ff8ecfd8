// Stands in for cuBLAS, cuBLASLt and cuDNN: a call is one launch, under the name of a kernel that
// the library would take on an H100. Nothing is computed and nothing is refused.
#include "virtual.h"

// The headers of 16- and 8-bit types need nvcc; cuBLAS's need only their names.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
struct __half { unsigned short bits; };
struct __nv_bfloat16 { unsigned short bits; };
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#include <cstdlib>
#include <cstring>

static const char* product_name(int type, bool tf32) {
  switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return "nvjet_qqtst_128x256_128x5_2x1_v_bz_TNT";
    case CUDA_R_16BF: return "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT";
    case CUDA_R_16F:
      return "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
             "segment_k_off_kernel__5x_cublas";
  }
  return tf32 ? "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4" : "ampere_sgemm_128x64_nn";
}

// cuBLAS --------------------------------------------------------------------------------------

struct Blas {
  cudaStream_t stream;
  int pointer_mode, math_mode;
};
static Blas* blas(cublasHandle_t handle) { return reinterpret_cast<Blas*>(handle); }
static cublasStatus_t product(cublasHandle_t handle, int type) {
  bool tf32 = blas(handle)->math_mode == CUBLAS_TF32_TENSOR_OP_MATH;
  launch_of_library(product_name(type, tf32), blas(handle)->stream);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasCreate_v2(cublasHandle_t* to) {
  return *to = reinterpret_cast<cublasHandle_t>(new Blas{}), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return blas(handle)->stream = stream, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  return *stream = blas(handle)->stream, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return blas(handle)->pointer_mode = mode, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  return *mode = (cublasPointerMode_t)blas(handle)->pointer_mode, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return blas(handle)->math_mode = mode, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  return *mode = (cublasMath_t)blas(handle)->math_mode, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int,
                                  int, int, const float*, const float*, int, const float*, int,
                                  const float*, float*, int) {
  return product(handle, CUDA_R_32F);
}
API cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t,
                                             cublasOperation_t, int, int, int, const float*,
                                             const float*, int, long long, const float*, int,
                                             long long, const float*, float*, int, long long, int) {
  return product(handle, CUDA_R_32F);
}
API cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int,
                                int, int, const void*, const void*, cudaDataType type, int,
                                const void*, cudaDataType, int, const void*, void*, cudaDataType,
                                int, cublasComputeType_t, cublasGemmAlgo_t) {
  return product(handle, type);
}
API cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t,
                                              cublasOperation_t, int, int, int, const void*,
                                              const void*, cudaDataType type, int, long long,
                                              const void*, cudaDataType, int, long long,
                                              const void*, void*, cudaDataType, int, long long, int,
                                              cublasComputeType_t, cublasGemmAlgo_t) {
  return product(handle, type);
}

// cuBLASLt ------------------------------------------------------------------------------------

API cublasStatus_t cublasLtCreate(cublasLtHandle_t* to) {
  return *to = reinterpret_cast<cublasLtHandle_t>(new Blas{}), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t,
                                            cudaDataType_t) {
  return *to = (cublasLtMatmulDesc_t)calloc(1, 256), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t it) {
  return free(it), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type,
                                              uint64_t, uint64_t, int64_t) {
  return *to = reinterpret_cast<cublasLtMatrixLayout_t>(new int(type)), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return delete reinterpret_cast<int*>(layout), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  return *to = (cublasLtMatmulPreference_t)calloc(1, 256), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t it) {
  return free(it), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
    cublasLtMatmulHeuristicResult_t* to, int* number) {
  memset(to, 0, sizeof *to);
  to->state = CUBLAS_STATUS_SUCCESS;
  return *number = 1, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                                  cublasLtMatrixLayout_t left, const void*, cublasLtMatrixLayout_t,
                                  const void*, const void*, cublasLtMatrixLayout_t, void*,
                                  cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*,
                                  size_t, cudaStream_t stream) {
  launch_of_library(product_name(*reinterpret_cast<int*>(left), false), stream);
  return CUBLAS_STATUS_SUCCESS;
}

// cuDNN: its frontend builds a graph of descriptors and asks for an engine; one is always there ---

API cudnnStatus_t cudnnCreate(cudnnHandle_t* to) {
  return *to = reinterpret_cast<cudnnHandle_t>(new cudaStream_t{}), CUDNN_STATUS_SUCCESS;
}
static cudaStream_t& stream_of_handle(cudnnHandle_t handle) {
  return *reinterpret_cast<cudaStream_t*>(handle);
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return stream_of_handle(handle) = stream, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return *stream = stream_of_handle(handle), CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                               cudnnBackendDescriptor_t* to) {
  return *to = reinterpret_cast<cudnnBackendDescriptor_t>(new int(type)), CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t it) {
  return delete reinterpret_cast<int*>(it), CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t,
                                           cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t wanted,
                                           int64_t* number, void* to) {
  int64_t have = 0, size = 0;
  switch (type) {
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      have = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE ||
             name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
      break;
    case CUDNN_TYPE_INT64: have = 1, size = 8; break;
    case CUDNN_TYPE_INT32: have = 1, size = 4; break;
    case CUDNN_TYPE_CHAR: have = size = wanted < 2 ? wanted : 2; break;  // an empty text
    default: break;
  }
  if (number) *number = have;
  if (to && wanted && size) memset(to, 0, size);
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t,
                                      cudnnBackendDescriptor_t) {
  launch_of_library("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_"
                    "64x128x64_4x1x1_kernel0_0", stream_of_handle(handle));
  return CUDNN_STATUS_SUCCESS;
}

// Its older interface, of batch norms and some convolutions: nothing needs a workspace.
#define CONVOLUTION(way, Results, A, B, C)                                                   \
  API cudnnStatus_t cudnnGetConvolution##way##Algorithm_v7(                                  \
      cudnnHandle_t, A, B, cudnnConvolutionDescriptor_t, C, int, int* number, Results* to) { \
    memset(to, 0, sizeof *to);                                                               \
    return *number = 1, CUDNN_STATUS_SUCCESS;                                                \
  }                                                                                          \
  API cudnnStatus_t cudnnFindConvolution##way##AlgorithmEx(                                  \
      cudnnHandle_t, A, const void*, B, const void*, cudnnConvolutionDescriptor_t, C, void*, \
      int, int* number, Results* to, void*, size_t) {                                        \
    memset(to, 0, sizeof *to);                                                               \
    return *number = 1, CUDNN_STATUS_SUCCESS;                                                \
  }
using Shape = cudnnTensorDescriptor_t;
using Filter = cudnnFilterDescriptor_t;
CONVOLUTION(Forward, cudnnConvolutionFwdAlgoPerf_t, Shape, Filter, Shape)
CONVOLUTION(BackwardData, cudnnConvolutionBwdDataAlgoPerf_t, Filter, Shape, Shape)
CONVOLUTION(BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t, Shape, Shape, Filter)
API cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, Shape, Shape, Shape, Shape,
    cudnnActivationDescriptor_t, size_t* bytes) {
  return *bytes = 0, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, Shape, Shape, Shape, Shape, Shape,
    Shape, cudnnActivationDescriptor_t, size_t* bytes) {
  return *bytes = 0, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, cudnnActivationDescriptor_t, Shape,
    size_t* bytes) {
  return *bytes = 0, CUDNN_STATUS_SUCCESS;
}
