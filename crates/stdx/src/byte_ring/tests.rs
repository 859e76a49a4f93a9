//! The promises of the ring: by model, between real threads, and under loom (with the sleeper).
//!
//! Upstream:   `cargo test`; the models with `RUSTFLAGS="--cfg loom" cargo test --release`.
//! Downstream: `byte_ring`, `sleeper`.

#[cfg(not(loom))]
mod plain {
    use crate::byte_ring;
    use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Publish,
        Pop,
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0_usize..=56).prop_map(Step::Push),
            1 => any::<()>().prop_map(|()| Step::Publish),
            2 => any::<()>().prop_map(|()| Step::Pop),
            1 => any::<()>().prop_map(|()| Step::Release),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_queue_of_published_records(steps in prop::collection::vec(step(), 1..400)) {
            let (mut producer, mut consumer) = byte_ring(128);
            assert_eq!(producer.record_bytes_max(), 56);
            let mut pushed = VecDeque::new();
            let mut published = VecDeque::new();
            for (turn, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(bytes) => {
                        let record = vec![turn as u8; bytes];
                        let room = producer.room(bytes);
                        let (left, right) = record.split_at(bytes / 3);
                        assert_eq!(producer.push(&[left, b"", right]), room);
                        if room {
                            pushed.push_back(record);
                        }
                    }
                    Step::Publish => {
                        assert_eq!(producer.publish(), !pushed.is_empty());
                        published.append(&mut pushed);
                    }
                    Step::Pop => {
                        assert_eq!(consumer.is_empty(), published.is_empty());
                        let front = consumer.front().map(<[u8]>::to_vec);
                        assert_eq!(front, published.pop_front());
                        if front.is_some() {
                            consumer.pop();
                        }
                    }
                    Step::Release => consumer.release(),
                }
            }
            // Emptied, it takes the longest record wherever its ends stand (I6).
            producer.publish();
            while consumer.front().is_some() {
                consumer.pop();
            }
            consumer.release();
            assert!(producer.push(&[&[7; 56]]));
        }
    }

    #[test]
    fn room_comes_back_by_release_and_not_by_pop() {
        let (mut producer, mut consumer) = byte_ring(64);
        let record = [1_u8; 24];
        assert!(producer.push(&[&record]) && producer.push(&[&record]));
        assert!(!producer.push(&[&record]));
        assert!(consumer.front().is_none());
        assert!(producer.publish());
        assert_eq!(consumer.front(), Some(&record[..]));
        consumer.pop();
        assert!(!producer.room(24));
        consumer.release();
        assert!(producer.room(24));
    }

    #[test]
    #[should_panic(expected = "I6")]
    fn a_record_that_never_fits_is_a_bug() {
        let (mut producer, _consumer) = byte_ring(64);
        producer.push(&[&[0; 25]]);
    }

    #[test]
    fn a_million_bytes_cross_between_threads_unchanged() {
        const RECORDS: u64 = 100_000;
        let (mut producer, mut consumer) = byte_ring(1024);
        let length = |index: u64| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as usize;
        let writer = std::thread::spawn(move || {
            for index in 0..RECORDS {
                let record = vec![index as u8; length(index)];
                while !producer.push(&[&index.to_le_bytes(), &record]) {
                    producer.publish();
                    std::thread::yield_now();
                }
                if index % 7 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        for index in 0..RECORDS {
            while consumer.is_empty() {
                consumer.release();
                std::thread::yield_now();
            }
            let record = consumer.front().expect("not empty");
            assert_eq!(record[..8], index.to_le_bytes());
            assert_eq!(record.len(), 8 + length(index));
            assert!(record[8..].iter().all(|&byte| byte == index as u8));
            assert_eq!(record.as_ptr().align_offset(8), 0);
            consumer.pop();
            if index % 5 == 0 {
                consumer.release();
            }
        }
        writer.join().expect("the writer's assertions hold");
    }
}

#[cfg(loom)]
mod models {
    use crate::model::explore;
    use crate::{Sleeper, byte_ring};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    #[test]
    fn records_cross_whole_and_in_order_in_every_interleaving() {
        explore("ring", Some(3), || {
            let (mut producer, mut consumer) = byte_ring(64);
            // Three of 32 bytes in 64: the third reuses the first's memory.
            let writer = thread::spawn(move || {
                for index in 0..3_u8 {
                    while !producer.push(&[&[index; 20]]) {
                        thread::yield_now();
                    }
                    producer.publish();
                }
            });
            for index in 0..3_u8 {
                while consumer.is_empty() {
                    thread::yield_now();
                }
                assert_eq!(consumer.front(), Some(&[index; 20][..]));
                consumer.pop();
                consumer.release();
            }
            writer.join().expect("joins");
        });
    }

    #[test]
    fn no_wake_up_is_lost() {
        explore("sleeper", Some(3), || {
            let sleeper = Arc::new(Sleeper::new());
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let mut consumers = Vec::new();
            for _ in 0..2 {
                let (mut producer, consumer) = byte_ring(64);
                consumers.push(consumer);
                let (sleeper, bell) = (Arc::clone(&sleeper), Arc::clone(&bell));
                thread::spawn(move || {
                    assert!(producer.push(&[b"work"]));
                    producer.publish();
                    if sleeper.must_wake() {
                        *bell.0.lock().expect("sound") = true;
                        bell.1.notify_one();
                    }
                });
            }
            let mut done = 0;
            loop {
                for consumer in &mut consumers {
                    while consumer.front().is_some() {
                        consumer.pop();
                        done += 1;
                    }
                }
                if done == 2 {
                    break;
                }
                sleeper.prepare_sleep();
                if consumers.iter().all(|consumer| consumer.is_empty()) {
                    let mut rung = bell.0.lock().expect("sound");
                    while !*rung {
                        rung = bell.1.wait(rung).expect("sound");
                    }
                    *rung = false; // A lost wake-up is a deadlock here, which loom reports.
                }
                sleeper.cancel();
            }
        });
    }
}
