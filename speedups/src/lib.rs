// SPDX-License-Identifier: Apache-2.0
//! Compiled decoders for the Python package `tubemq_spark`, which works without them.

pub mod gather;
pub mod reply;

use pyo3::prelude::*;

/// The functions that Python calls. All release Python's lock while they work.
#[pymodule]
mod tubemq_spark_speedups {
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;
    use pyo3::pybacked::PyBackedBytes;
    use pyo3::types::PyBytes;

    use crate::gather::{gather as gather_parts, give_back, Parts};
    use crate::reply::split;

    /// The version of this interface. `tubemq_spark.protocol.speedups` uses the one that it knows.
    #[pymodule_export]
    const INTERFACE: u32 = 1;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Memory for an Arrow buffer: `pyarrow.foreign_buffer(block.address, len(block), block)`.
    #[pyclass(frozen)]
    pub struct Block(Vec<u8>);

    impl Drop for Block {
        fn drop(&mut self) {
            give_back(std::mem::take(&mut self.0));
        }
    }

    #[pymethods]
    impl Block {
        #[getter]
        fn address(&self) -> usize {
            self.0.as_ptr() as usize
        }

        fn __len__(&self) -> usize {
            self.0.len()
        }
    }

    type Split<'py> = (
        usize,
        usize,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
    );

    /// Return where the messages of the reply in `data[begin:]` begin and end, and arrays with one element for each: ids, check sums, flags,
    /// begins and ends of payloads, and whether the check sum is right. The arrays have 8 bytes for each element, flags
    /// and the last one have 1. Return None for a reply that the parser has to decode.
    #[pyfunction]
    fn split_reply<'py>(py: Python<'py>, data: &Bound<'py, PyBytes>, begin: usize) -> Option<Split<'py>> {
        let data = data.as_bytes();
        let found = py.detach(|| split(data, begin))?;
        let longs = |values: &[i64]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            PyBytes::new(py, &bytes)
        };
        Some((
            found.first,
            found.last,
            longs(&found.ids),
            longs(&found.check_sums),
            PyBytes::new(py, &found.flags),
            longs(&found.starts),
            longs(&found.ends),
            PyBytes::new(py, &found.intact),
        ))
    }

    /// Return the offsets (32 bits) and the values of an Arrow array of binary values: `data[starts[n]:ends[n]]` for each
    /// n, of each tuple `(data, starts, ends)`, whose numbers have 64 bits. Raise `ValueError` for bounds outside the data.
    #[pyfunction]
    #[allow(clippy::needless_pass_by_value)] // PyO3 makes the vector for this call
    fn gather(
        py: Python<'_>,
        parts: Vec<(PyBackedBytes, PyBackedBytes, PyBackedBytes)>,
    ) -> PyResult<(Bound<'_, PyBytes>, Block)> {
        let longs = |bytes: &[u8]| {
            let each = bytes.chunks_exact(size_of::<i64>());
            each.map(|one| one.try_into().map_or(0, i64::from_ne_bytes)).collect()
        };
        let (offsets, values) = py
            .detach(|| {
                let all: Vec<Parts> = parts
                    .iter()
                    .map(|(data, starts, ends)| Parts { data, starts: longs(starts), ends: longs(ends) })
                    .collect();
                gather_parts(&all)
            })
            .ok_or_else(|| PyValueError::new_err("a part is not in its buffer, or all are too large"))?;
        let bytes: Vec<u8> = offsets.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Ok((PyBytes::new(py, &bytes), Block(values)))
    }
}
