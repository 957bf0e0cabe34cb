/* Watches the calls that leave a generated library: an audit module of the dynamic linker (man 7 rtld-audit).
 *
 * Every function that *.wrapper.so binds is replaced by a stub. The stub keeps the argument registers, tells the
 * witness, and goes on to the function. x86-64 Linux, glibc 2.35 or newer (audit of libraries bound at load). */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096
#define STUB_BYTES 16
#define HIDDEN __attribute__((visibility("hidden")))

typedef void (*Witness)(const char *name, const uint64_t *integers, const double *floats, const uint64_t *stack);

static Witness witness;
static const char *names[MOST];
static unsigned count;
HIDDEN uint64_t audit_targets[MOST];
HIDDEN extern char audit_stubs[];

/* The frame that audit_common builds: rdi rsi rdx rcx r8 r9, xmm0-7 of two words each, a word of padding, rax, the
 * number of the stub, the return address, the arguments on the stack. */
HIDDEN void audit_call(const uint64_t *frame) {
    double floats[8];
    for (int i = 0; i < 8; i++) memcpy(&floats[i], frame + 6 + 2 * i, sizeof(double));
    if (witness) witness(names[frame[24]], frame, floats, frame + 26);
}

__asm__(
    ".text\n"
    "audit_common:\n"
    "  push %rax\n  sub $184, %rsp\n"
    "  mov %rdi, 0(%rsp)\n  mov %rsi, 8(%rsp)\n  mov %rdx, 16(%rsp)\n"
    "  mov %rcx, 24(%rsp)\n  mov %r8, 32(%rsp)\n  mov %r9, 40(%rsp)\n"
    "  movups %xmm0, 48(%rsp)\n  movups %xmm1, 64(%rsp)\n  movups %xmm2, 80(%rsp)\n  movups %xmm3, 96(%rsp)\n"
    "  movups %xmm4, 112(%rsp)\n  movups %xmm5, 128(%rsp)\n  movups %xmm6, 144(%rsp)\n  movups %xmm7, 160(%rsp)\n"
    "  mov %rsp, %rdi\n  call audit_call\n"
    "  mov 0(%rsp), %rdi\n  mov 8(%rsp), %rsi\n  mov 16(%rsp), %rdx\n"
    "  mov 24(%rsp), %rcx\n  mov 32(%rsp), %r8\n  mov 40(%rsp), %r9\n"
    "  movups 48(%rsp), %xmm0\n  movups 64(%rsp), %xmm1\n  movups 80(%rsp), %xmm2\n  movups 96(%rsp), %xmm3\n"
    "  movups 112(%rsp), %xmm4\n  movups 128(%rsp), %xmm5\n  movups 144(%rsp), %xmm6\n  movups 160(%rsp), %xmm7\n"
    "  add $184, %rsp\n  pop %rax\n"
    "  mov (%rsp), %r11\n  add $8, %rsp\n"
    "  lea audit_targets(%rip), %r10\n  jmp *(%r10,%r11,8)\n"
    ".p2align 4\n"
    "audit_stubs:\n"
    ".set number, 0\n"
    ".rept 4096\n"
    "  .p2align 4\n  push $number\n  jmp audit_common\n  .set number, number + 1\n"
    ".endr\n");

/* The witness lives in the program's own link namespace: it writes its address to the place told here. */
unsigned int la_version(unsigned int version) {
    const char *where = getenv("AUDIT_REGISTER");
    FILE *file = where ? fopen(where, "w") : NULL;
    if (file) {
        fprintf(file, "%lu\n", (unsigned long)&witness);
        fclose(file);
    }
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)space, (void)cookie;
    return strstr(map->l_name, ".wrapper.so") ? LA_FLG_BINDFROM | LA_FLG_BINDTO : LA_FLG_BINDTO;
}

static int is_watched(const char *name) {
    return !strncmp(name, "aoti_torch_", 11) || !strncmp(name, "cpp_", 4) || !strncmp(name, "cuLaunch", 8);
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to, unsigned int *flags,
                       const char *name) {
    (void)index, (void)from, (void)to;
    if (*flags & LA_SYMB_DLSYM || !is_watched(name) || count == MOST) return symbol->st_value;
    names[count] = name;
    audit_targets[count] = symbol->st_value;
    return (uintptr_t)audit_stubs + STUB_BYTES * count++;
}
