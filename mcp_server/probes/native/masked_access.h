// AddressSanitizer does not see the masked AVX-512 loads and stores with which at::vec handles the tail of a row
// (ATen/cpu/vec/vec512, torch 2.13): compiler built-ins are not instrumented. Check their range by hand.
#pragma once

#if defined(__SANITIZE_ADDRESS__) && defined(__AVX512F__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

extern "C" void __asan_loadN(const void* address, std::size_t size);
extern "C" void __asan_storeN(const void* address, std::size_t size);

namespace aoti_debug {
inline std::size_t masked_bytes(std::uint64_t mask, std::size_t element) {
  return mask == 0 ? 0 : (64 - static_cast<std::size_t>(__builtin_clzll(mask))) * element;
}
inline void reads(std::uint64_t mask, const void* address, std::size_t element) {
  if (mask != 0) __asan_loadN(address, masked_bytes(mask, element));
}
inline void writes(std::uint64_t mask, const void* address, std::size_t element) {
  if (mask != 0) __asan_storeN(address, masked_bytes(mask, element));
}
} // namespace aoti_debug

#define _mm512_maskz_loadu_ps(m, p) (aoti_debug::reads(m, p, 4), (_mm512_maskz_loadu_ps)(m, p))
#define _mm512_maskz_loadu_pd(m, p) (aoti_debug::reads(m, p, 8), (_mm512_maskz_loadu_pd)(m, p))
#define _mm512_maskz_loadu_epi8(m, p) (aoti_debug::reads(m, p, 1), (_mm512_maskz_loadu_epi8)(m, p))
#define _mm512_maskz_loadu_epi16(m, p) (aoti_debug::reads(m, p, 2), (_mm512_maskz_loadu_epi16)(m, p))
#define _mm512_mask_loadu_ps(s, m, p) (aoti_debug::reads(m, p, 4), (_mm512_mask_loadu_ps)(s, m, p))
#define _mm512_mask_loadu_pd(s, m, p) (aoti_debug::reads(m, p, 8), (_mm512_mask_loadu_pd)(s, m, p))
#define _mm512_mask_loadu_epi8(s, m, p) (aoti_debug::reads(m, p, 1), (_mm512_mask_loadu_epi8)(s, m, p))
#define _mm512_mask_loadu_epi16(s, m, p) (aoti_debug::reads(m, p, 2), (_mm512_mask_loadu_epi16)(s, m, p))
#define _mm512_mask_loadu_epi32(s, m, p) (aoti_debug::reads(m, p, 4), (_mm512_mask_loadu_epi32)(s, m, p))
#define _mm512_mask_loadu_epi64(s, m, p) (aoti_debug::reads(m, p, 8), (_mm512_mask_loadu_epi64)(s, m, p))
#define _mm512_mask_storeu_ps(p, m, v) (aoti_debug::writes(m, p, 4), (_mm512_mask_storeu_ps)(p, m, v))
#define _mm512_mask_storeu_pd(p, m, v) (aoti_debug::writes(m, p, 8), (_mm512_mask_storeu_pd)(p, m, v))
#define _mm512_mask_storeu_epi8(p, m, v) (aoti_debug::writes(m, p, 1), (_mm512_mask_storeu_epi8)(p, m, v))
#define _mm512_mask_storeu_epi16(p, m, v) (aoti_debug::writes(m, p, 2), (_mm512_mask_storeu_epi16)(p, m, v))
#define _mm512_mask_storeu_epi32(p, m, v) (aoti_debug::writes(m, p, 4), (_mm512_mask_storeu_epi32)(p, m, v))
#define _mm512_mask_storeu_epi64(p, m, v) (aoti_debug::writes(m, p, 8), (_mm512_mask_storeu_epi64)(p, m, v))
#endif
