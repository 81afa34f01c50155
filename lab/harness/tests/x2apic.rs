//! The local APIC in x2APIC mode: PMIs, the timer and NMIs through registers that are MSRs.

use pugmark_harness::judge::Source;
use pugmark_harness::sweep::Sweep;

fn sweep(source: Source) -> Sweep<'static> {
    Sweep::new(source, "skylake").monitor_options("x2apic=on").guest_words("x2apic")
}

#[test]
fn pmis_are_served_through_the_x2apic_as_vectors_and_as_nmis() {
    // Those of `small-buffers` and `circular` come as vectors and need EOI; those of `nmi` and `pause` are NMIs.
    let only = "sort,timer,small-buffers,circular,nmi,foreign-nmis,pause,stop";
    sweep(Source::Pt).only(only).run().unwrap();
}

#[test]
fn branch_records_are_served_through_the_x2apic() {
    sweep(Source::Bts).only("sort,nmi").run().unwrap();
}

#[test]
fn processors_are_started_and_woken_by_interrupts_that_the_x2apic_sends() {
    sweep(Source::Pt).only("sort,small-buffers,nmi").processors(4).run().unwrap();
}

#[test]
fn a_kernel_finds_no_x2apic_mode_where_the_monitor_offers_none() {
    let error = Sweep::new(Source::Pt, "skylake").only("sort").guest_words("x2apic").run().unwrap_err();
    assert!(format!("{error:#}").contains("there is no x2APIC mode"), "{error:#}");
}
