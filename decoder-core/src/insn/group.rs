//! The ModRM bytes that are defined for an opcode. Each set is a [`Group`]; the manual calls some of them groups.

/// The mandatory prefix before the opcode, numbered as in VEX.pp: none, 66, F3, F2.
pub(super) type Prefix = usize;

/// No mandatory prefix.
const NP: Prefix = 0;
/// 66.
const P66: Prefix = 1;
/// F3.
const F3: Prefix = 2;
/// F2.
const F2: Prefix = 3;

/// The defined ModRM.reg values, one bit each: for each mandatory prefix, those with a memory operand and those with a
/// register.
#[derive(Clone, Copy)]
pub(super) struct Forms([[u8; 2]; 4]);

impl Forms {
    /// Returns true if `modrm` is defined after `prefix`.
    #[inline]
    pub(super) const fn allow(&self, prefix: Prefix, modrm: u8) -> bool {
        let register = (modrm >= 0xc0) as usize;
        self.0[prefix & 3][register] >> (modrm >> 3 & 7) & 1 != 0
    }

    /// Returns the values that are defined without a prefix: with memory, with a register.
    pub(super) const fn without_prefix(&self) -> [u8; 2] {
        self.0[NP]
    }

    /// Returns these values after any prefix.
    const fn any(memory: u8, register: u8) -> Self {
        Self([[memory, register]; 4])
    }

    /// Returns no values.
    const fn none() -> Self {
        Self([[0; 2]; 4])
    }

    /// Adds values after `prefix`.
    const fn with(mut self, prefix: Prefix, memory: u8, register: u8) -> Self {
        self.0[prefix] = [self.0[prefix][0] | memory, self.0[prefix][1] | register];
        self
    }

    /// Returns all ModRM values, after the prefixes in `mask` (bit = [`Prefix`]).
    const fn after(mask: u8) -> Self {
        let mut forms = Self::none();
        let mut prefix = 0;
        while prefix < 4 {
            if mask >> prefix & 1 != 0 {
                forms.0[prefix] = [0xff, 0xff];
            }
            prefix += 1;
        }
        forms
    }
}

macro_rules! groups {
    ($($(#[doc = $doc:literal])+ $name:ident = $forms:expr;)+) => {
        /// A set of ModRM bytes.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[allow(clippy::upper_case_acronyms)]
        pub(super) enum Group {
            $($(#[doc = $doc])+ $name,)+
        }

        /// The sets, in the order of [`Group`].
        const FORMS: [Forms; [$(Group::$name),+].len()] = [$($forms),+];
    };
}

groups! {
    /// No ModRM byte.
    None = Forms::none();
    /// Any ModRM byte.
    Any = Forms::any(0xff, 0xff);
    /// A memory operand.
    Memory = Forms::any(0xff, 0);
    /// /0 (group 11: MOV; POP r/m).
    Reg0 = Forms::any(0x01, 0x01);
    /// Group 11 with XABORT, XBEGIN (F8).
    Group11 = Forms::any(0x01, 0x81);
    /// Group 4: INC, DEC.
    Group4 = Forms::any(0x03, 0x03);
    /// Group 5: INC, DEC, CALL, CALL far, JMP, JMP far, PUSH.
    Group5 = Forms::any(0x7f, 0x57);
    /// MOV from a segment register.
    FromSegment = Forms::any(0x3f, 0x3f);
    /// MOV to a segment register: not CS.
    ToSegment = Forms::any(0x3d, 0x3d);
    /// Group 6: SLDT, STR, LLDT, LTR, VERR, VERW, and LKGS.
    Group6 = Forms::any(0x3f, 0x3f).with(F2, 0x40, 0x40);
    /// Group 7, memory: SGDT, SIDT, LGDT, LIDT, SMSW, LMSW, INVLPG, RSTORSSP. Its registers have a table.
    Group7 = Forms::any(0xdf, 0xff).with(F3, 0x20, 0);
    /// Group 8: BT, BTS, BTR, BTC.
    Group8 = Forms::any(0xf0, 0xf0);
    /// Group 9: CMPXCHG8B, XRSTORS, XSAVEC, XSAVES, VMPTRLD, VMPTRST, VMCLEAR, VMXON, RDRAND, RDSEED, RDPID,
    /// SENDUIPI.
    Group9 = Forms::any(0x02, 0)
        .with(NP, 0xf8, 0xc0).with(P66, 0x40, 0xc0).with(F3, 0x40, 0xc0);
    /// Group 12, 13: shifts of packed words and doublewords.
    Group12 = Forms::none().with(NP, 0, 0x54).with(P66, 0, 0x54);
    /// Group 14: shifts of packed quadwords and of whole registers.
    Group14 = Forms::none().with(NP, 0, 0x44).with(P66, 0, 0xcc);
    /// Group 15: FXSAVE to CLFLUSH, CLWB, CLFLUSHOPT, PTWRITE, CLRSSBSY; the fences, RDFSBASE to WRGSBASE,
    /// INCSSP, UMONITOR, TPAUSE, UMWAIT.
    Group15 = Forms::none()
        .with(NP, 0xff, 0xe0).with(P66, 0xc0, 0x40).with(F3, 0x50, 0x7f).with(F2, 0, 0x40);
    /// Without a prefix.
    Np = Forms::after(0b0001);
    /// Without a prefix, memory.
    NpMemory = Forms::none().with(NP, 0xff, 0);
    /// After 66.
    P66 = Forms::after(0b0010);
    /// After 66, memory.
    P66Memory = Forms::none().with(P66, 0xff, 0);
    /// After F3.
    F3 = Forms::after(0b0100);
    /// After F3, a register.
    F3Register = Forms::none().with(F3, 0, 0xff);
    /// After F2, memory.
    F2Memory = Forms::none().with(F2, 0xff, 0);
    /// Without a prefix or after 66.
    NpP66 = Forms::after(0b0011);
    /// Without a prefix or after 66, memory.
    NpP66Memory = Forms::none().with(NP, 0xff, 0).with(P66, 0xff, 0);
    /// Without a prefix or after 66, a register.
    NpP66Register = Forms::none().with(NP, 0, 0xff).with(P66, 0, 0xff);
    /// Without a prefix or after F3.
    NpF3 = Forms::after(0b0101);
    /// After 66 or F3.
    P66F3 = Forms::after(0b0110);
    /// After 66 or F2.
    P66F2 = Forms::after(0b1010);
    /// Without a prefix, or after 66 or F3.
    NotF2 = Forms::after(0b0111);
    /// After 66, F3 or F2.
    NotNp = Forms::after(0b1110);
    /// 0F 12: MOVLPS, MOVHLPS, MOVLPD, MOVSLDUP, MOVDDUP.
    MovLow = Forms::after(0b1101).with(P66, 0xff, 0);
    /// 0F 16: MOVHPS, MOVLHPS, MOVHPD, MOVSHDUP.
    MovHigh = Forms::after(0b0101).with(P66, 0xff, 0);
    /// 0F 2B: MOVNTPS, MOVNTPD, MOVNTSS, MOVNTSD.
    MovNt = Forms::any(0xff, 0);
    /// 0F D6: MOVQ, MOVQ2DQ, MOVDQ2Q.
    MovQ = Forms::after(0b0010).with(F3, 0, 0xff).with(F2, 0, 0xff);
    /// 0F 78: VMREAD, EXTRQ, INSERTQ.
    Vmread = Forms::after(0b0001).with(P66, 0, 0x01).with(F2, 0, 0xff);
    /// 0F 79: VMWRITE, EXTRQ, INSERTQ.
    Vmwrite = Forms::after(0b0001).with(P66, 0, 0xff).with(F2, 0, 0xff);
    /// 0F 38 F0, F1: MOVBE, CRC32.
    Movbe = Forms::after(0b1000).with(NP, 0xff, 0).with(P66, 0xff, 0);
    /// 0F 38 D8: AESENCWIDE128KL and the other wide Key Locker instructions.
    KeyLockerWide = Forms::none().with(F3, 0x0f, 0);
    /// 0F 38 DC to DF: AES, and Key Locker with a handle in memory (LOADIWKEY takes registers).
    Aes = Forms::after(0b0010).with(F3, 0xff, 0);
    /// 0F 38 DC: AESENC, AESENC128KL, LOADIWKEY.
    AesLoad = Forms::after(0b0110);
    /// 0F 38 F6: WRSS, ADCX, ADOX.
    Adx = Forms::after(0b0110).with(NP, 0xff, 0);
    /// 0F 38 F8: MOVDIR64B, ENQCMD, ENQCMDS, URDMSR, UWRMSR.
    Enqcmd = Forms::none().with(P66, 0xff, 0).with(F3, 0xff, 0xff).with(F2, 0xff, 0xff);
    /// 0F 3A F0: HRESET.
    Hreset = Forms::none().with(F3, 0, 0x01);
    /// 0F A7 of VIA PadLock: XSTORE, XCRYPT.
    Padlock = Forms::any(0, 0x01).with(F3, 0, 0xff);
    /// The x87 escapes D8 to DF, whose registers have a table.
    D8 = Forms::any(0xff, 0xff);
    /// D9.
    D9 = Forms::any(0xfd, 0xff);
    /// DB.
    Db = Forms::any(0xaf, 0xff);
    /// DD.
    Dd = Forms::any(0xdf, 0xff);
}

impl Group {
    /// Returns the ModRM bytes in the set.
    #[inline]
    pub(super) const fn forms(self) -> &'static Forms {
        &FORMS[self as usize]
    }
}

/// The defined ModRM bytes from C0 to FF for each of the opcodes D8 to DF, bit = ModRM - C0.
pub(super) const X87_REGISTERS: [u64; 8] = [
    u64::MAX,
    // FNOP at D0; FCHS, FABS, FTST, FXAM; constants without EF; E0 to FF otherwise.
    0xffff_7f33_ff01_ffff,
    // FCMOVcc, FUCOMPP.
    0x0000_0200_ffff_ffff,
    // FCMOVNcc, FNENI to FNSETPM, FUCOMI, FCOMI.
    0x00ff_ff1f_ffff_ffff,
    u64::MAX,
    // FFREE to FUCOMP.
    0x0000_ffff_ffff_ffff,
    // FCOMPP at D9.
    0xffff_ffff_02ff_ffff,
    // FNSTSW AX at E0; FUCOMIP, FCOMIP.
    0x00ff_ff01_ffff_ffff,
];

/// Group 7 with a register: the prefixes after which each ModRM byte from C0 to FF is defined, bit = [`Prefix`].
pub(super) const GROUP7_REGISTERS: [u8; 64] = {
    const ROWS: [&[u8; 8]; 8] = [
        b"111111d1", // C0: ENCLV VMCALL VMLAUNCH VMRESUME VMXOFF PCONFIG WRMSRNS/WRMSRLIST/RDMSRLIST PBNDKB
        b"11d12223", // C8: MONITOR MWAIT CLAC/ERETU/ERETS STAC TDCALL SEAMRET SEAMOPS ENCLS/SEAMCALL
        b"11001111", // D0: XGETBV XSETBV - - VMFUNC XEND XTEST ENCLU
        b"ffffffff", // D8: VMRUN VMMCALL VMLOAD VMSAVE STGI CLGI SKINIT INVLPGA
        b"ffffffff", // E0: SMSW
        b"d8404455", // E8: SERIALIZE/SETSSBSY/XSUSLDTRK XRESLDTRK SAVEPREVSSP - UIRET TESTUI RDPKRU/CLUI WRPKRU/STUI
        b"ffffffff", // F0: LMSW
        b"ffffffff", // F8: SWAPGS RDTSCP MONITORX MWAITX CLZERO RDPRU INVLPGB TLBSYNC
    ];
    let mut masks = [0; 64];
    let mut at = 0;
    while at < 64 {
        masks[at] = super::vector::hex_digit(ROWS[at / 8][at % 8]);
        at += 1;
    }
    masks
};
