//! The C functions that the instruction decoder and the block decoder have both, by the same rules.

/// Defines them for a type of decoder with a [`Flow`](super::base::Flow) in its field `flow`.
macro_rules! flow_functions {
    (
        $decoder:ident,
        $alloc_decoder:ident,
        $free_decoder:ident,
        $sync_forward:ident,
        $sync_backward:ident,
        $sync_set:ident,
        $get_offset:ident,
        $get_sync_offset:ident,
        $get_config:ident,
        $get_image:ident,
        $set_image:ident,
        $time:ident,
        $core_bus_ratio:ident,
        $asid:ident,
        $event:ident $(,)?
    ) => {
        /// Makes a decoder for the buffer of the configuration; null if the configuration is too short or has no
        /// buffer.
        ///
        /// # Safety
        /// `config` is null or points to a `struct pt_config` with as many bytes as it says. Until the decoder is
        /// freed, its buffer is readable, nobody but its callback writes to it, and its callback is null or a function
        /// of the header's type, which does not use the decoder.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $alloc_decoder(config: *const PtConfig) -> *mut $decoder {
            // SAFETY: by contract.
            let Some(config) = (unsafe { PtConfig::from_user(config) }) else { return ptr::null_mut() };
            Box::into_raw(Box::new($decoder::new(config)))
        }

        /// Frees the decoder and its own image.
        ///
        /// # Safety
        /// `decoder` is null or from the function that makes decoders, and is not used afterwards.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $free_decoder(decoder: *mut $decoder) {
            if !decoder.is_null() {
                // SAFETY: the function above made it from a box.
                drop(unsafe { Box::from_raw(decoder) });
            }
        }

        /// Goes to the next PSB.
        ///
        /// # Safety
        /// `decoder` is null or from the function that makes decoders, and nobody else uses it during the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync_forward(decoder: *mut $decoder) -> c_int {
            // SAFETY: by contract.
            let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
            let answer = decoder.sync_forward();
            decoder.flow.done(answer)
        }

        /// Goes to the last PSB before the current packet.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync_backward(decoder: *mut $decoder) -> c_int {
            // SAFETY: by contract.
            let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
            let answer = decoder.sync_backward();
            decoder.flow.done(answer)
        }

        /// Goes to the PSB at `offset`.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync_set(decoder: *mut $decoder, offset: u64) -> c_int {
            // SAFETY: by contract.
            let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
            let answer = decoder.sync_set(offset);
            decoder.flow.done(answer)
        }

        /// Writes the offset of the next packet.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB; `offset` is null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_offset(decoder: *const $decoder, offset: *mut u64) -> c_int {
            // SAFETY: by contract.
            let decoder = unsafe { decoder.as_ref() };
            // SAFETY: by contract.
            unsafe { write_offset(decoder.map(|decoder| decoder.flow.query.offset()), offset) }
        }

        /// Writes the offset of the last synchronisation.
        ///
        /// # Safety
        /// As for the function that writes the offset.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_sync_offset(decoder: *const $decoder, offset: *mut u64) -> c_int {
            // SAFETY: by contract.
            let decoder = unsafe { decoder.as_ref() };
            // SAFETY: by contract.
            unsafe { write_offset(decoder.map(|decoder| decoder.flow.query.sync_offset()), offset) }
        }

        /// Returns the decoder's copy of its configuration, which lives as long as the decoder.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_config(decoder: *const $decoder) -> *const PtConfig {
            // SAFETY: by contract.
            let decoder = unsafe { decoder.as_ref() };
            decoder.map_or(ptr::null(), |decoder| &raw const decoder.flow.query.config)
        }

        /// Returns the decoder's image: its own unless another one was set.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_image(decoder: *mut $decoder) -> *mut Image {
            // SAFETY: by contract.
            let decoder = unsafe { decoder.as_mut() };
            decoder.map_or(ptr::null_mut(), |decoder| decoder.flow.image())
        }

        /// Sets the decoder's image; null selects its own.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB; `image` is null or from `pt_image_alloc`, lives while the
        /// decoder has it, and is used by nobody else while the decoder is used.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set_image(decoder: *mut $decoder, image: *mut Image) -> c_int {
            // SAFETY: by contract.
            let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
            // SAFETY: by contract.
            unsafe { decoder.flow.set_image(image) };
            0
        }

        /// Writes the time of the last branch or event.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB; each other pointer is null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $time(
            decoder: *mut $decoder,
            time: *mut u64,
            lost_mtc: *mut u32,
            lost_cyc: *mut u32,
        ) -> c_int {
            // SAFETY: by contract.
            let decoder = unsafe { decoder.as_ref() };
            // SAFETY: by contract.
            unsafe { write_time(decoder.map(|decoder| decoder.flow.query.time()), time, lost_mtc, lost_cyc) }
        }

        /// Writes the ratio of core clock to bus clock at the last branch or event.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB; `ratio` is null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $core_bus_ratio(decoder: *mut $decoder, ratio: *mut u32) -> c_int {
            // SAFETY: by contract.
            let decoder = unsafe { decoder.as_ref() };
            // SAFETY: by contract.
            unsafe { write_ratio(decoder.map(|decoder| decoder.flow.query.time()), ratio) }
        }

        /// Writes as much of the current address space as the caller's structure has.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB; `asid` is null or points to `size` writable bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $asid(decoder: *const $decoder, asid: *mut PtAsid, size: usize) -> c_int {
            // SAFETY: by contract.
            let Some(decoder) = (unsafe { decoder.as_ref() }) else { return Code::Invalid.status() };
            // SAFETY: by contract.
            unsafe { write_asid(&decoder.flow.asid, asid, size) }
        }

        /// Applies the pending event, writes as much of it as the caller's structure has, and returns the status.
        ///
        /// # Safety
        /// As for the function that goes to the next PSB; `event` is null or points to `size` writable bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $event(decoder: *mut $decoder, event: *mut PtEvent, size: usize) -> c_int {
            // SAFETY: by contract.
            let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
            if event.is_null() {
                return Code::Invalid.status();
            }
            let answer = decoder.event(|next| {
                // SAFETY: it is not null, and has that many bytes.
                unsafe { write_start(next, event, size) };
            });
            decoder.flow.done(answer)
        }
    };
}

pub(super) use flow_functions;
