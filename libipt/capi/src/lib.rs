//! libipt.so.2 with Pugmark's decoder: the functions and structures that Debian's `intel-pt.h` (libipt 2.0.5 and
//! 2.1.2) declares.
//!
//! Programs that are linked with libipt run on it without being rebuilt. `README.md` lists the functions and their
//! tests.
//!
//! # The parts
//!
//! ```text
//!  C program, linked with libipt.so.2
//!     |            |           |             |                         |             |
//!  pt_enc_*     pt_pkt_*    pt_qry_*      pt_insn_*, pt_blk_*       pt_image_*    pt_iscache_*
//!     v            v           v             v                         v             v
//!  encoder      packets <--- query <------- flow -------------------> image ------> section cache
//!     |            |           |           which events belong       code by       parts of files, mapped
//!     |            |           |           to which instruction      address       and shared by images, with
//!     v            v           v                                                   what is known of their code
//!  pugmark_decoder_core: packets from and to bytes, errata, time
//! ```
//!
//! Events, their order and each status are libipt's: `query` reads ahead as libipt does, and `flow` walks over the code
//! as libipt does, with an instruction reader that finds the same lengths as libipt's. decoder-core provides what the
//! manual alone decides: packets, the errata of processors, the time. An image reads sections of files, or asks the
//! program's callback. `config`, `event`, `error` and `packet` are the header's structures. `events` is the event
//! decoder that libipt has since 2.1; it uses packets alone. It, and the reader of packets, are `pugmark_ipt`'s, which
//! ptxed uses, too.
//!
//! # Example
//!
//! The program prints the addresses of the four instructions that were executed: 1000, 1002, 1005, 1006. It is
//! built with `cc example.c -lipt`.
//!
//! ```c
//! #include <inttypes.h>
//! #include <stdio.h>
//! #include <intel-pt.h>
//!
//! /* 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: ret */
//! static const uint8_t code[] = {0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xc3};
//!
//! /* PSB; MODE.Exec, 64 bit; FUP 1000; PSBEND; TNT, taken; TIP.PGD without an address */
//! static uint8_t trace[] = {0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
//!                           0x02, 0x82, 0x02, 0x82, 0x99, 0x01, 0x7d, 0x00, 0x10, 0,    0,    0,
//!                           0,    0x02, 0x23, 0x06, 0x01};
//!
//! static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
//! {
//!     size_t n = 0;
//!     for (; n < size && ip - 0x1000 + n < sizeof code; n++)
//!         buffer[n] = code[ip - 0x1000 + n];
//!     return n ? (int) n : -pte_nomap;
//! }
//!
//! int main(void)
//! {
//!     struct pt_config config;
//!     pt_config_init(&config);
//!     config.begin = trace;
//!     config.end = trace + sizeof trace;
//!
//!     struct pt_insn_decoder *decoder = pt_insn_alloc_decoder(&config);
//!     pt_image_set_callback(pt_insn_get_image(decoder), read_code, NULL);
//!
//!     int status = pt_insn_sync_forward(decoder);
//!     while (status >= 0 && !(status & pts_eos)) {
//!         if (status & pts_event_pending) {
//!             struct pt_event event;
//!             status = pt_insn_event(decoder, &event, sizeof event);
//!         } else {
//!             struct pt_insn insn = {0};
//!             status = pt_insn_next(decoder, &insn, sizeof insn);
//!             if (insn.size)
//!                 printf("%" PRIx64 "\n", insn.ip);
//!         }
//!     }
//!     pt_insn_free_decoder(decoder);
//!     return 0;
//! }
//! ```
//!
//! # Promises of callers
//!
//! Every function checks its arguments as libipt does: where libipt answers `-pte_invalid` to a null pointer, so does
//! the function. The `# Safety` section of each function has the rest. Pointers to decoders must come from the function
//! that allocates them, and a decoder is used by one thread at a time.
//!
//! A panic never leaves a function: a panic that would leave an `extern "C"` function aborts the process, and the
//! release profile aborts at the panic. Catching it would allow use of a decoder in an unknown state. The decoder
//! returns errors for any trace and panics nowhere on purpose.

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!(
    "the layouts of libipt's structures are written down for 64-bit little-endian processors only"
);

pub mod config;
pub mod encoder;
pub mod error;
pub mod event;
pub mod events;
mod fast_packets;
pub mod flow;
pub mod image;
#[cfg(test)]
mod layout;
mod out;
pub mod packets;
pub mod query;
pub mod version;

pub(crate) use pugmark_ipt::packet;
