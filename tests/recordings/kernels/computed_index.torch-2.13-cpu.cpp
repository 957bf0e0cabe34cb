// Triton kernels are embedded as comments in /cache/c5kp3log.wrapper.cpp

#include <torch/cache/cpp_prefix.h>
extern "C"  void  cpp_fused_add_embedding_mul_0(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0,
                       const int64_t ks1)
{
    std::atomic<int> inductor_cpu_integer_div_error{0};
    inductor_cpu_integer_div_error_flag = &inductor_cpu_integer_div_error;
    {
        #pragma GCC ivdep
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(ks0*ks1); x0+=static_cast<int64_t>(1L))
        {
            for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(8L); x1+=static_cast<int64_t>(16L))
            {
                {
                    if(C10_LIKELY(x1 >= static_cast<int64_t>(0L) && x1 < static_cast<int64_t>(8L)))
                    {
                        auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];
                        auto tmp1 = static_cast<int64_t>(2);
                        auto tmp2 = int64_t(tmp0 * tmp1);
                        auto tmp3 = static_cast<int64_t>(1);
                        auto tmp4 = int64_t(tmp2 + tmp3);
                        auto tmp5 = tmp4;
                        auto tmp6 = c10::convert<int64_t>(tmp5);
                        AOTI_TORCH_CHECK((0 <= tmp6) & (tmp6 < 40L), "index out of bounds: 0 <= tmp6 < 40L");
                        auto tmp8 = at::vec::Vectorized<float>::loadu(in_ptr1 + static_cast<int64_t>(x1 + 8L*tmp4), static_cast<int64_t>(8L));
                        tmp8.store(out_ptr0 + static_cast<int64_t>(x1 + 8L*x0), static_cast<int64_t>(8L));
                    }
                }
            }
        }
    }
    {
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(8L); x0+=static_cast<int64_t>(16L))
        {
            {
                if(C10_LIKELY(x0 >= static_cast<int64_t>(0L) && x0 < static_cast<int64_t>(8L)))
                {
                    for (int64_t x0_tail = static_cast<int64_t>(0L);x0_tail < static_cast<int64_t>(8L); x0_tail++)
                    {
                        auto tmp0 = x0_tail;
                        auto tmp1 = c10::convert<int64_t>(tmp0);
                        auto tmp2 = static_cast<int64_t>(4);
                        auto tmp3 = tmp1 < tmp2;
                        auto tmp4 = static_cast<int64_t>(2);
                        auto tmp5 = tmp1 < tmp4;
                        auto tmp6 = static_cast<int64_t>(1);
                        auto tmp7 = tmp1 < tmp6;
                        auto tmp8 = static_cast<float>(0.11696209758520126);
                        auto tmp9 = static_cast<float>(0.35343894362449646);
                        auto tmp10 = tmp7 ? tmp8 : tmp9;
                        auto tmp11 = static_cast<int64_t>(3);
                        auto tmp12 = tmp1 < tmp11;
                        auto tmp13 = static_cast<float>(0.1833750307559967);
                        auto tmp14 = static_cast<float>(0.2197858691215515);
                        auto tmp15 = tmp12 ? tmp13 : tmp14;
                        auto tmp16 = tmp5 ? tmp10 : tmp15;
                        auto tmp17 = static_cast<int64_t>(6);
                        auto tmp18 = tmp1 < tmp17;
                        auto tmp19 = static_cast<int64_t>(5);
                        auto tmp20 = tmp1 < tmp19;
                        auto tmp21 = static_cast<float>(-0.12374091148376465);
                        auto tmp22 = static_cast<float>(0.16964463889598846);
                        auto tmp23 = tmp20 ? tmp21 : tmp22;
                        auto tmp24 = static_cast<int64_t>(7);
                        auto tmp25 = tmp1 < tmp24;
                        auto tmp26 = static_cast<float>(0.04062559828162193);
                        auto tmp27 = static_cast<float>(-0.08443467319011688);
                        auto tmp28 = tmp25 ? tmp26 : tmp27;
                        auto tmp29 = tmp18 ? tmp23 : tmp28;
                        auto tmp30 = tmp3 ? tmp16 : tmp29;
                        out_ptr1[static_cast<int64_t>(x0_tail)] = tmp30;
                    }
                }
            }
        }
    }
    inductor_cpu_integer_div_error_flag = nullptr;
    inductor_cpu_throw_if_integer_div_error(inductor_cpu_integer_div_error);
}

#include <torch/cache/cpp_prefix.h>
extern "C"  void  cpp_fused_add_arange_argmax_embedding_expand_gather_index_rsub_select_squeeze_sub_view_1(const float* in_ptr0,
                       const int64_t* in_ptr1,
                       const float* in_ptr2,
                       const float* in_ptr3,
                       const int64_t* in_ptr4,
                       int64_t* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0,
                       const int64_t ks1)
{
    std::atomic<int> inductor_cpu_integer_div_error{0};
    inductor_cpu_integer_div_error_flag = &inductor_cpu_integer_div_error;
    {
        #pragma GCC ivdep
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(ks0); x0+=static_cast<int64_t>(1L))
        {
            {
                IndexValue<float> tmp_acc0 = IndexValue<float>{0, -std::numeric_limits<float>::infinity()};
                IndexValueVec<float, 1, 2> tmp_acc0_vec = IndexValueVec<float, 1, 2>(-std::numeric_limits<float>::infinity());
                for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(40L); x1+=static_cast<int64_t>(16L))
                {
                    {
                        if(C10_LIKELY(x1 >= static_cast<int64_t>(0) && x1 < static_cast<int64_t>(32L)))
                        {
                            auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x1 + 40L*x0), static_cast<int64_t>(16));
                            tmp_acc0_vec = argmax_combine_vec<float, 1, 2, true>(tmp_acc0_vec, tmp0, x1);
                        }
                        if(C10_UNLIKELY(x1 >= static_cast<int64_t>(32L) && x1 < static_cast<int64_t>(40L)))
                        {
                            auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x1 + 40L*x0), static_cast<int64_t>(8L));
                            tmp_acc0_vec = argmax_combine_vec<float, 1, 2, true>(tmp_acc0_vec, tmp0, x1, static_cast<int64_t>(8L));
                        }
                    }
                }
                tmp_acc0 = argmax_combine(tmp_acc0, argmax_vec_reduce_all(tmp_acc0_vec));
                out_ptr0[static_cast<int64_t>(x0)] = static_cast<int64_t>(tmp_acc0.index);
            }
            for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(8L); x1+=static_cast<int64_t>(16L))
            {
                {
                    if(C10_LIKELY(x1 >= static_cast<int64_t>(0L) && x1 < static_cast<int64_t>(8L)))
                    {
                        auto tmp0 = in_ptr1[static_cast<int64_t>(x0)];
                        auto tmp19 = out_ptr0[static_cast<int64_t>(x0)];
                        auto tmp39 = in_ptr4[static_cast<int64_t>(ks1*x0)];
                        auto tmp1 = static_cast<int64_t>(1);
                        auto tmp2 = int64_t(tmp0 - tmp1);
                        auto tmp3 = tmp2;
                        auto tmp4 = c10::convert<int64_t>(tmp3);
                        AOTI_TORCH_CHECK((0 <= tmp4) & (tmp4 < ks1), "index out of bounds: 0 <= tmp4 < ks1");
                        auto tmp6 = at::vec::Vectorized<float>::loadu(in_ptr2 + static_cast<int64_t>(x1 + 8L*tmp2 + 8L*ks1*x0), static_cast<int64_t>(8L));
                        auto tmp7 = static_cast<int64_t>(39);
                        auto tmp8 = int64_t(tmp7 - tmp0);
                        auto tmp9 = 40L;
                        auto tmp10 = c10::convert<int64_t>(tmp9);
                        auto tmp11 = int64_t(tmp8 + tmp10);
                        auto tmp12 = tmp8 < 0;
                        auto tmp13 = tmp12 ? tmp11 : tmp8;
                        auto tmp14 = tmp13;
                        auto tmp15 = c10::convert<int64_t>(tmp14);
                        AOTI_TORCH_CHECK((0 <= tmp15) & (tmp15 < 40L), "index out of bounds: 0 <= tmp15 < 40L");
                        auto tmp17 = at::vec::Vectorized<float>::loadu(in_ptr3 + static_cast<int64_t>(x1 + 8L*tmp13), static_cast<int64_t>(8L));
                        auto tmp18 = tmp6 + tmp17;
                        auto tmp20 = int64_t(tmp19 + tmp10);
                        auto tmp21 = tmp19 < 0;
                        auto tmp22 = tmp21 ? tmp20 : tmp19;
                        auto tmp23 = tmp22;
                        auto tmp24 = c10::convert<int64_t>(tmp23);
                        AOTI_TORCH_CHECK((0 <= tmp24) & (tmp24 < 40L), "index out of bounds: 0 <= tmp24 < 40L");
                        auto tmp26 = at::vec::Vectorized<float>::loadu(in_ptr3 + static_cast<int64_t>(x1 + 8L*tmp22), static_cast<int64_t>(8L));
                        auto tmp27 = tmp18 + tmp26;
                        auto tmp28 = ks1;
                        auto tmp29 = c10::convert<int64_t>(tmp28);
                        auto tmp30 = int64_t(tmp29 - tmp0);
                        auto tmp31 = int64_t(tmp30 + tmp29);
                        auto tmp32 = tmp30 < 0;
                        auto tmp33 = tmp32 ? tmp31 : tmp30;
                        auto tmp34 = tmp33;
                        auto tmp35 = c10::convert<int64_t>(tmp34);
                        AOTI_TORCH_CHECK((0 <= tmp35) & (tmp35 < ks1), "index out of bounds: 0 <= tmp35 < ks1");
                        auto tmp37 = at::vec::Vectorized<float>::loadu(in_ptr2 + static_cast<int64_t>(x1 + 8L*tmp33 + 8L*ks1*x0), static_cast<int64_t>(8L));
                        auto tmp38 = tmp27 + tmp37;
                        auto tmp40 = int64_t(tmp0 + tmp39);
                        auto tmp41 = tmp40;
                        auto tmp42 = c10::convert<int64_t>(tmp41);
                        AOTI_TORCH_CHECK((0 <= tmp42) & (tmp42 < 40L), "index out of bounds: 0 <= tmp42 < 40L");
                        auto tmp44 = at::vec::Vectorized<float>::loadu(in_ptr3 + static_cast<int64_t>(x1 + 8L*tmp40), static_cast<int64_t>(8L));
                        auto tmp45 = tmp38 + tmp44;
                        tmp45.store(out_ptr1 + static_cast<int64_t>(x1 + 8L*x0), static_cast<int64_t>(8L));
                    }
                }
            }
        }
    }
    inductor_cpu_integer_div_error_flag = nullptr;
    inductor_cpu_throw_if_integer_div_error(inductor_cpu_integer_div_error);
}

// Compile cmd
// Link cmd
