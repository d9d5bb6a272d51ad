AND (q.topic = ANY ($7::text[]) OR q.topic ^@ ANY ($8::text[]))
