"""Medical pictures: DICOM files, wherever pictures are read (`dicom`)."""
