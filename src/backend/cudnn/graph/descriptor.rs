//! Backend descriptors: created, filled, finalized and read in Rust's terms.
//!
//! A [`Draft`] is filled and then becomes a [`Descriptor`], which no longer
//! changes. Errors name the attribute and carry the library's own words.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cudnn::sys::cudnnHandle_t;
use cudarc::driver::sys::CUdeviceptr;

use super::super::driver::Called;
use super::calls::{Calls, Raw};
use super::names::{Attribute, Kind, value};

/// Room for notes and knobs: more than any version has kinds of. Asked for
/// their number alone, some attributes answer 0.
pub const ROOM: usize = 128;

/// A finalized descriptor, or one that [`Descriptor::descriptors`] filled.
pub struct Descriptor {
    calls: Rc<Calls>,
    raw: Raw,
    kind: Kind,
    /// The library keeps pointers to what a descriptor was made of.
    _parts: Vec<Rc<Descriptor>>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; whatever points to it holds an
        // Rc and so is destroyed first. A failure leaves nothing to do.
        unsafe { (self.calls.destroy)(self.raw) };
    }
}

/// A descriptor that is being filled.
pub struct Draft(Descriptor);

impl Draft {
    /// An empty descriptor.
    pub fn new(calls: &Rc<Calls>, kind: Kind) -> Called<Draft> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is good for one descriptor.
        let status = unsafe { (calls.create)(kind.number, &raw mut raw) };
        calls.check("cudnnBackendCreateDescriptor", status, kind.name)?;
        Ok(Draft(Descriptor {
            calls: Rc::clone(calls),
            raw,
            kind,
            _parts: Vec::new(),
        }))
    }

    /// Sets elements of C type `T`.
    ///
    /// # Safety
    /// `T` must be the C type that the library reads for attribute type `kind`.
    unsafe fn set<T>(self, attribute: Attribute, kind: i32, values: &[T]) -> Called<Draft> {
        let Descriptor { calls, raw, .. } = &self.0;
        // SAFETY: the descriptor is alive, the array is as long as stated, and
        // the caller vouches for the element type; the library copies it.
        let status = unsafe {
            let array = values.as_ptr().cast();
            (calls.set)(*raw, attribute.number, kind, values.len() as i64, array)
        };
        calls.check("cudnnBackendSetAttribute", status, attribute.name)?;
        Ok(self)
    }

    /// Sets 64-bit integers.
    pub fn integers(self, attribute: Attribute, values: &[i64]) -> Called<Draft> {
        // SAFETY: INT64 is int64_t.
        unsafe { self.set(attribute, value::INT64, values) }
    }

    /// Sets 64-bit integers from sizes.
    pub fn sizes(self, attribute: Attribute, values: &[usize]) -> Called<Draft> {
        let values: Vec<i64> = values.iter().map(|&v| v as i64).collect();
        self.integers(attribute, &values)
    }

    /// Sets one 32-bit integer.
    pub fn int32(self, attribute: Attribute, number: i32) -> Called<Draft> {
        // SAFETY: INT32 is int32_t.
        unsafe { self.set(attribute, value::INT32, &[number]) }
    }

    /// Sets a constant of a C enum; `kind` is its attribute type.
    pub fn constant(self, attribute: Attribute, kind: i32, number: i32) -> Called<Draft> {
        // SAFETY: C enums of this header are ints.
        unsafe { self.set(attribute, kind, &[number]) }
    }

    /// Sets a single-precision number.
    pub fn float(self, attribute: Attribute, number: f32) -> Called<Draft> {
        // SAFETY: FLOAT is float.
        unsafe { self.set(attribute, value::FLOAT, &[number]) }
    }

    /// Sets a double-precision number.
    pub fn double(self, attribute: Attribute, number: f64) -> Called<Draft> {
        // SAFETY: DOUBLE is double.
        unsafe { self.set(attribute, value::DOUBLE, &[number]) }
    }

    /// Sets a text; the count covers the final 0, as cudnn-frontend counts it.
    pub fn text(self, attribute: Attribute, text: &str) -> Called<Draft> {
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        // SAFETY: CHAR is char, one byte each.
        unsafe { self.set(attribute, value::CHAR, &bytes) }
    }

    /// Sets device addresses.
    pub fn addresses(self, attribute: Attribute, addresses: &[CUdeviceptr]) -> Called<Draft> {
        // SAFETY: VOID_PTR is void *, as wide as a device address; the library
        // does not read what they point to on the host.
        unsafe { self.set(attribute, value::VOID_PTR, addresses) }
    }

    /// Sets the handle.
    pub fn handle(self, attribute: Attribute, handle: cudnnHandle_t) -> Called<Draft> {
        // SAFETY: HANDLE is cudnnHandle_t.
        unsafe { self.set(attribute, value::HANDLE, &[handle]) }
    }

    /// Sets other descriptors, which stay alive as long as this one.
    pub fn descriptors(mut self, attribute: Attribute, parts: &[&Rc<Descriptor>]) -> Called<Draft> {
        let raw: Vec<Raw> = parts.iter().map(|part| part.raw).collect();
        self.0
            ._parts
            .extend(parts.iter().map(|&part| Rc::clone(part)));
        // SAFETY: BACKEND_DESCRIPTOR is a pointer; the parts are held from now on.
        unsafe { self.set(attribute, value::BACKEND_DESCRIPTOR, &raw) }
    }

    /// Finalizes: the library checks the whole and may decline.
    pub fn finalize(self) -> Called<Rc<Descriptor>> {
        let Descriptor {
            calls, raw, kind, ..
        } = &self.0;
        // SAFETY: the descriptor is alive, and so are its parts.
        let status = unsafe { (calls.finalize)(*raw) };
        calls.check("cudnnBackendFinalize", status, kind.name)?;
        Ok(Rc::new(self.0))
    }
}

impl Descriptor {
    /// The pointer, for calls that take a whole descriptor.
    pub fn raw(&self) -> Raw {
        self.raw
    }

    /// Reads up to `room` elements into `target`; returns how many there are.
    ///
    /// # Safety
    /// `target` must be good for `room` elements of the C type of `kind`, and
    /// those must be valid for whatever the library writes.
    unsafe fn get(
        &self,
        attribute: Attribute,
        kind: i32,
        room: usize,
        target: *mut c_void,
    ) -> Called<usize> {
        let mut count = 0i64;
        // SAFETY: the caller vouches for the target; the descriptor is alive.
        let status = unsafe {
            let room = room as i64;
            (self.calls.get)(
                self.raw,
                attribute.number,
                kind,
                room,
                &raw mut count,
                target,
            )
        };
        self.calls
            .check("cudnnBackendGetAttribute", status, attribute.name)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn list<T: Clone + Default>(
        &self,
        attribute: Attribute,
        kind: i32,
        room: usize,
    ) -> Called<Vec<T>> {
        let mut list = vec![T::default(); room];
        // SAFETY: the list has room for `room` elements; the callers below
        // choose T as wide as the C type, and every bit pattern is valid.
        let count = unsafe { self.get(attribute, kind, room, list.as_mut_ptr().cast()) }?;
        list.truncate(count);
        Ok(list)
    }

    /// One 64-bit integer.
    pub fn integer(&self, attribute: Attribute) -> Called<i64> {
        let mut number = 0i64;
        // SAFETY: room for one int64_t.
        unsafe { self.get(attribute, value::INT64, 1, (&raw mut number).cast()) }?;
        Ok(number)
    }

    /// One constant of a C enum.
    pub fn constant(&self, attribute: Attribute, kind: i32) -> Called<i32> {
        let mut number = 0i32;
        // SAFETY: C enums of this header are ints; room for one.
        unsafe { self.get(attribute, kind, 1, (&raw mut number).cast()) }?;
        Ok(number)
    }

    /// All constants of a C enum that an attribute holds.
    pub fn constants(&self, attribute: Attribute, kind: i32) -> Called<Vec<i32>> {
        self.list::<i32>(attribute, kind, ROOM)
    }

    /// A text.
    pub fn text(&self, attribute: Attribute) -> Called<String> {
        // SAFETY: with room for none, nothing is written.
        let length = unsafe { self.get(attribute, value::CHAR, 0, std::ptr::null_mut()) }?;
        let bytes = self.list::<u8>(attribute, value::CHAR, length)?;
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Copies of the descriptors that an attribute holds, all of one kind and
    /// at most `room`.
    pub fn descriptors(
        &self,
        attribute: Attribute,
        kind: Kind,
        room: usize,
    ) -> Called<Vec<Descriptor>> {
        let mut copies = (0..room)
            .map(|_| Ok(Draft::new(&self.calls, kind)?.0))
            .collect::<Called<Vec<_>>>()?;
        let mut raw: Vec<Raw> = copies.iter().map(|copy| copy.raw).collect();
        // SAFETY: room for `room` pointers to live descriptors of that kind,
        // into which the library copies.
        let count = unsafe {
            let target = raw.as_mut_ptr().cast();
            self.get(attribute, value::BACKEND_DESCRIPTOR, room, target)
        }?;
        copies.truncate(count);
        Ok(copies)
    }
}
