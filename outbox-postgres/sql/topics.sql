AND (q.topic = ANY ($10::text[]) OR q.topic ^@ ANY ($11::text[]))
