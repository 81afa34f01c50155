.text
push %rax
pop %rbx
push $0x5
push (%rbx)
mov %rax,%rbx
mov (%rbx),%eax
mov %al,(%rbx)
movb $1,(%rbx)
movw $1,(%rbx)
movl $1,4(%rbx,%rcx,4)
movq $-1,-8(%rbx)
movabs $0x1234567890,%rax
mov $5,%eax
mov $-5,%rax
lea 8(%rax,%rbx,2),%rcx
lea 0x10(%rip),%rax
add %eax,%ebx
add (%rax),%ebx
addl $5,(%rax)
sub $0x10,%rsp
and $-16,%rsp
xor %eax,%eax
test %al,%al
test %rax,%rax
cmpb $0,(%rax)
inc %eax
decl (%rax)
neg %rax
not %eax
imul %ecx,%eax
imul $3,%ecx,%eax
mul %rcx
div %ecx
shl $3,%eax
shl %cl,%eax
sar %eax
movzbl %al,%ecx
movzbl (%rax),%ecx
movsbl %al,%ecx
movslq %eax,%rcx
movslq (%rax),%rcx
cltq
cltd
cqto
cwtl
sete %al
setne (%rax)
cmovz %rax,%rbx
cmovg (%rax),%ebx
xchg %rax,%rbx
xchg %eax,(%rbx)
lock incl (%rax)
lock cmpxchg %ecx,(%rdx)
lock xadd %eax,(%rbx)
rep movsb
rep stosq
repnz scasb
movsq
leave
nop
nopw 0(%rax,%rax,1)
nopl 0(%rax)
xchg %ax,%ax
cpuid
rdtsc
mfence
lfence
pause
rdmsr
wrmsr
mov %fs:0x28,%rax
mov %cr0,%rax
mov %rax,%cr4
mov %ds,%eax
bt %eax,%ebx
bts $3,(%rax)
bsf %eax,%ebx
popcnt %eax,%ebx
bswap %eax
movaps %xmm0,%xmm1
movups (%rax),%xmm1
movss (%rax),%xmm1
movsd %xmm1,(%rax)
addss %xmm0,%xmm1
pxor %xmm0,%xmm0
movd %eax,%xmm0
movq %xmm0,%rax
cvtsi2sd %rax,%xmm0
cvttsd2si %xmm0,%eax
ucomisd %xmm0,%xmm1
shufps $1,%xmm0,%xmm1
vaddps %ymm0,%ymm1,%ymm2
vmovups (%rax),%ymm1
fld %st(1)
flds (%rax)
fstpl (%rax)
faddp
clc
std
endbr64
in %dx,%al
out %al,$0x80
xgetbv
prefetcht0 (%rax)
cmpxchg16b (%rax)
movnti %eax,(%rbx)
sgdt (%rax)
invlpg (%rax)
xsave (%rax)
fxsave (%rax)
clflush (%rax)
ldmxcsr (%rax)
enter $8,$0
mov 0x1234,%eax
mov %eax,%gs:(%rax)
data16 nop
ud2
