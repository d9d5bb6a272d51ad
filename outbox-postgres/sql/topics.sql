AND (q.topic = ANY ($8::text[]) OR q.topic ^@ ANY ($9::text[]))
