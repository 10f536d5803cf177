// Every exported name: a jump through its slot. A slot holds at first the way to braid_nccl_resolve(), which
// puts the final address there (resolve.cc); registers and stack are as the caller left them, so the
// signature of a name need not be known here. This is what a linker's PLT does, without any work when the
// library is loaded.
#if !defined(__x86_64__) || !defined(__ELF__)
#error "only the x86-64 ELF calling convention is written down here"
#endif

        .macro  TRAMPOLINE name
        .text
        .p2align 4
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        endbr64
        jmp     *slot_\name(%rip)
        .cfi_endproc
        .size   \name, . - \name

first_\name:                            // the first call: finds out where to go
        .cfi_startproc
        endbr64
        leaq    slot_\name(%rip), %r11
        jmp     first_call
        .cfi_endproc

        .section .data.rel.local, "aw"
slot_\name:
        .quad   first_\name
        .endm

// Keeps all registers that can hold arguments, asks for the slot's address, and goes on there.
        .text
        .p2align 4
        .type   first_call, @function
first_call:
        .cfi_startproc
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbp, 0
        movq    %rsp, %rbp
        .cfi_def_cfa_register %rbp
        subq    $192, %rsp              // a multiple of 16: the stack is aligned for the call below
        movq    %rdi, 0(%rsp)
        movq    %rsi, 8(%rsp)
        movq    %rdx, 16(%rsp)
        movq    %rcx, 24(%rsp)
        movq    %r8, 32(%rsp)
        movq    %r9, 40(%rsp)
        movq    %rax, 48(%rsp)          // how many vector registers a variadic call uses
        movq    %r10, 56(%rsp)
        movups  %xmm0, 64(%rsp)
        movups  %xmm1, 80(%rsp)
        movups  %xmm2, 96(%rsp)
        movups  %xmm3, 112(%rsp)
        movups  %xmm4, 128(%rsp)
        movups  %xmm5, 144(%rsp)
        movups  %xmm6, 160(%rsp)
        movups  %xmm7, 176(%rsp)
        movq    %r11, %rdi
        call    braid_nccl_resolve
        movq    %rax, %r11
        movq    0(%rsp), %rdi
        movq    8(%rsp), %rsi
        movq    16(%rsp), %rdx
        movq    24(%rsp), %rcx
        movq    32(%rsp), %r8
        movq    40(%rsp), %r9
        movq    48(%rsp), %rax
        movq    56(%rsp), %r10
        movups  64(%rsp), %xmm0
        movups  80(%rsp), %xmm1
        movups  96(%rsp), %xmm2
        movups  112(%rsp), %xmm3
        movups  128(%rsp), %xmm4
        movups  144(%rsp), %xmm5
        movups  160(%rsp), %xmm6
        movups  176(%rsp), %xmm7
        leave
        .cfi_def_cfa %rsp, 8
        jmp     *%r11
        .cfi_endproc
        .size   first_call, . - first_call

        .section .data.rel.local, "aw"
        .p2align 3
        .globl  braid_nccl_slots
        .hidden braid_nccl_slots
braid_nccl_slots:                       // two per name, in the order of names.inc

#define NAME(name) TRAMPOLINE nccl##name ; TRAMPOLINE pnccl##name ;
#include "names.inc"

        .section .note.GNU-stack, "", @progbits
