/* What ptxed uses of Intel XED, which has to be built from its sources on most systems. Instructions are decoded by the
 * reader in libipt's sources, which is compiled in; it knows the length of each, its class, and where it branches to.
 */
#ifndef XED_INTERFACE_H
#define XED_INTERFACE_H

#include "pt_ild.h"
#include "pt_insn.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
	struct pt_insn insn;
	struct pt_insn_ext ext;
	int valid;
} xed_decoded_inst_t;

typedef struct {
	enum pt_exec_mode mode;
} xed_state_t;

typedef struct {
	const xed_decoded_inst_t *p;
	char *buf;
	int blen;
	int syntax;
	uint64_t runtime_address;
} xed_print_info_t;

typedef xed_decoded_inst_t xed_inst_t;
typedef enum pt_exec_mode xed_machine_mode_enum_t;
typedef int xed_bool_t, xed_error_enum_t, xed_category_enum_t, xed_iclass_enum_t;
typedef unsigned int xed_uint_t;

#define XED_MACHINE_MODE_INVALID ptem_unknown
#define XED_MACHINE_MODE_LEGACY_16 ptem_16bit
#define XED_MACHINE_MODE_LEGACY_32 ptem_32bit
#define XED_MACHINE_MODE_LONG_64 ptem_64bit

enum { XED_ERROR_NONE, XED_ERROR_BAD };
enum { XED_SYNTAX_INTEL, XED_SYNTAX_ATT, XED_ADDRESS_WIDTH_INVALID };
enum {
	XED_CATEGORY_OTHER,
	XED_CATEGORY_CALL,
	XED_CATEGORY_COND_BR,
	XED_CATEGORY_INTERRUPT,
	XED_CATEGORY_RET,
	XED_CATEGORY_SYSCALL,
	XED_CATEGORY_SYSRET,
	XED_CATEGORY_UNCOND_BR
};
enum {
	XED_ICLASS_OTHER,
	XED_ICLASS_BOUND,
	XED_ICLASS_CALL_FAR,
	XED_ICLASS_CALL_NEAR,
	XED_ICLASS_INT,
	XED_ICLASS_INT1,
	XED_ICLASS_INT3,
	XED_ICLASS_INTO,
	XED_ICLASS_IRET,
	XED_ICLASS_IRETD,
	XED_ICLASS_IRETQ,
	XED_ICLASS_JMP,
	XED_ICLASS_JMP_FAR,
	XED_ICLASS_RET_FAR,
	XED_ICLASS_RET_NEAR,
	XED_ICLASS_SYSCALL,
	XED_ICLASS_SYSCALL_AMD,
	XED_ICLASS_SYSENTER,
	XED_ICLASS_SYSEXIT,
	XED_ICLASS_SYSRET,
	XED_ICLASS_SYSRET_AMD,
	XED_ICLASS_VMCALL,
	XED_ICLASS_VMLAUNCH,
	XED_ICLASS_VMRESUME,
	XED_ICLASS_XBEGIN,
	XED_ICLASS_XEND
};

#define xed_tables_init() ((void) 0)
#define xed_state_zero(state) ((state)->mode = ptem_unknown)
#define xed_state_set_machine_mode(state, own) ((state)->mode = (own))
#define xed_state_init2(state, own, width) ((state)->mode = (own))
#define xed_decoded_inst_zero(inst) memset((inst), 0, sizeof(*(inst)))
#define xed_decoded_inst_set_mode(inst, own, width) ((inst)->insn.mode = (own))
#define xed_decoded_inst_valid(inst) ((inst)->valid)
#define xed_decoded_inst_inst(inst) (inst)
#define xed_decoded_inst_get_length(inst) ((xed_uint_t) (inst)->insn.size)
#define xed_decoded_inst_get_byte(inst, at) ((inst)->insn.raw[at])
#define xed_decoded_inst_get_branch_displacement(inst) ((inst)->ext.variant.branch.displacement)
#define xed_error_enum_t2str(error) "cannot be decoded"
#define xed_category_enum_t2str(category) "another category"
#define xed_iclass_enum_t2str(iclass) "another class"
#define xed_init_print_info(info) memset((info), 0, sizeof(*(info)))

static void xed_decoded_inst_zero_set_mode(xed_decoded_inst_t *inst, const xed_state_t *state)
{
	xed_decoded_inst_zero(inst);
	inst->insn.mode = state->mode;
}

static xed_error_enum_t xed_decode(xed_decoded_inst_t *inst, const uint8_t *raw, uint8_t size)
{
	memcpy(inst->insn.raw, raw, size);
	inst->insn.size = size;
	inst->valid = pt_ild_decode(&inst->insn, &inst->ext) == 0;
	return inst->valid ? XED_ERROR_NONE : XED_ERROR_BAD;
}

static xed_category_enum_t xed_inst_category(const xed_inst_t *inst)
{
	switch (inst->insn.iclass) {
	case ptic_other:
	case ptic_ptwrite:
		return XED_CATEGORY_OTHER;
	case ptic_cond_jump:
		return XED_CATEGORY_COND_BR;
	default:
		return XED_CATEGORY_UNCOND_BR;
	}
}

static xed_iclass_enum_t xed_inst_iclass(const xed_inst_t *inst)
{
	switch (inst->insn.iclass) {
	case ptic_call:
		return XED_ICLASS_CALL_NEAR;
	case ptic_return:
		return XED_ICLASS_RET_NEAR;
	case ptic_jump:
		return XED_ICLASS_JMP;
	case ptic_far_call:
		return XED_ICLASS_CALL_FAR;
	case ptic_far_return:
		return XED_ICLASS_RET_FAR;
	case ptic_far_jump:
		return XED_ICLASS_JMP_FAR;
	default:
		return XED_ICLASS_OTHER;
	}
}

/* Only direct branches have one. */
static xed_uint_t xed_decoded_inst_get_branch_displacement_width(const xed_decoded_inst_t *inst)
{
	switch (inst->insn.iclass) {
	case ptic_call:
	case ptic_jump:
	case ptic_cond_jump:
		return inst->ext.variant.branch.is_direct ? 4 : 0;
	default:
		return 0;
	}
}

static xed_bool_t xed_format_generic(xed_print_info_t *info)
{
	const struct pt_insn *insn = &info->p->insn;

	return snprintf(info->buf, (size_t) info->blen, "%u bytes, class %d", insn->size, (int) insn->iclass) > 0;
}

#endif
